// SPDX-License-Identifier: Apache-2.0 OR MIT
// Writes to every page that the guest can give, frees all of them, and then runs a command between Bifold's markers: the
// command then finds the memory of a VM that has run for long.
#include <bifold.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

// Memory that Linux says is available, in bytes.
static unsigned long available(void)
{
    char line[256];
    unsigned long kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lu", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib << 10;
}

int main(int argc, char **argv)
{
    int status = 0;
    if (argc < 2)
        return fprintf(stderr, "usage: touched COMMAND...\n"), 2;
    // The rest is for the kernel.
    unsigned long bytes = available() / 100 * 97;
    char *all = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!bytes || all == MAP_FAILED)
        return perror("mmap"), 1;
    madvise(all, bytes, MADV_NOHUGEPAGE);
    for (unsigned long i = 0; i < bytes; i += 4096)
        all[i] = 1;
    munmap(all, bytes);
    bifold_begin();
    pid_t child = fork();
    if (child == 0) {
        execvp(argv[1], argv + 1);
        perror(argv[1]);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0)
        return perror("fork"), 1;
    bifold_end();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
