// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Children that check inherited pages while the parent writes, and whose writes the parent must not
 * see. Some children execute this program again, which checks its data and a file.
 */

#include "storm.h"

#include <sys/stat.h>
#include <sys/syscall.h>

#define PAGES 128
#define FILE_PAGES 32

static unsigned char image[16 * PAGE] __attribute__((aligned(4096))) = {[0 ... 16 * PAGE - 1] = 0xa5};
static unsigned char blank[16 * PAGE] __attribute__((aligned(4096)));

static uint64_t file_stamp(uint64_t seed, size_t page)
{
    return mix(seed + page) | 1;
}

int after_exec(const char *seed_text, const char *fd_text)
{
    uint64_t seed = strtoull(seed_text, NULL, 0);
    struct worker w = {.kind = FORK, .number = 900, .random = seed};
    int fd = atoi(fd_text);
    uint64_t bytes = 0;
    unsigned char *file;

    for (size_t i = 0; i < sizeof image; i++)
        bytes += image[i] != 0xa5;
    for (size_t i = 0; i < sizeof blank; i++)
        bytes += blank[i] != 0;
    if (bytes) {
        atomic_fetch_add(&shared->corrupted[FORK], bytes);
        tell("corrupt fork-exec: %lu bytes of its own data", bytes);
    }
    file = mmap(NULL, FILE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (file == MAP_FAILED)
        give_up("mmap of the file");
    for (size_t i = 0; i < FILE_PAGES; i++)
        page_check(&w, file + i * PAGE, file_stamp(seed, i), 1);
    /* Private copies: no other process may see them. */
    for (size_t i = 0; i < FILE_PAGES; i += 3)
        page_fill(file + i * PAGE, seed + i);
    for (size_t i = 0; i < sizeof image; i += PAGE)
        page_fill(image + i, seed + i);
    for (size_t i = 0; i < sizeof image; i += PAGE)
        page_check(&w, image + i, seed + i, 1);
    return 0;
}

static _Noreturn void child(struct book *b, uint64_t seed, int file, int exec)
{
    struct worker *w = b->w;

    w->random = mix(seed);
    for (int i = 0; i < 48; i++)
        book_check(b, below(w, PAGES));
    for (int i = 0; i < 24; i++)
        book_write(b, below(w, PAGES));
    for (int i = 0; i < 48; i++)
        book_check(b, below(w, PAGES));
    if (exec) {
        char text[32], fd[16];
        snprintf(text, sizeof text, "%lu", seed);
        snprintf(fd, sizeof fd, "%d", file);
        execl("/proc/self/exe", "storm", "--after-exec", text, fd, (char *)NULL);
        tell("note exec: %s", strerror(errno));
        _exit(3);
    }
    _exit(0);
}

void run_fork(struct worker *w)
{
    struct book b = book_new(w, map_at(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, 0), PAGES);
    int file = (int)syscall(SYS_memfd_create, "storm-file", 0);

    if (file < 0 || ftruncate(file, FILE_PAGES * PAGE))
        give_up("a file in memory");
    unsigned char *shown = mmap(NULL, FILE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shown == MAP_FAILED)
        give_up("mmap of the file");
    for (size_t i = 0; i < PAGES; i++)
        book_write(&b, i);
    ready();
    while (!stopped()) {
        uint64_t seed = draw(w);
        int exec = seed % 3 == 0, status;
        pid_t pid;

        if (exec)
            for (size_t i = 0; i < FILE_PAGES; i++)
                page_fill(shown + i * PAGE, file_stamp(seed, i));
        pid = fork();
        if (pid < 0) {
            if (errno == EAGAIN || errno == ENOMEM) {
                usleep(1000);
                continue;
            }
            give_up("fork");
        }
        if (pid == 0)
            child(&b, seed, file, exec);
        for (int i = 0; i < 32; i++)
            book_write(&b, below(w, PAGES));
        for (int i = 0; i < 32; i++)
            book_check(&b, below(w, PAGES));
        if (waitpid(pid, &status, 0) != pid)
            give_up("waitpid");
        if (status) {
            atomic_fetch_add(&shared->died, 1);
            tell("died fork-%u: a child%s ended with status %x", w->number, exec ? " that executed" : "", status);
        }
        if (exec)
            for (size_t i = 0; i < FILE_PAGES; i++)
                page_check(w, shown + i * PAGE, file_stamp(seed, i), 1);
        book_check(&b, below(w, PAGES));
        worked(w);
    }
    book_check_all(&b);
}
