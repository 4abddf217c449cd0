/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Runs a command on 4 KB pages or on 2 MB ones, without touching the machine's settings:
 *
 *     launch 4k|2m FILE COMMAND [ARGUMENT...]
 *
 * 4k: no transparent huge pages for the command and its children (PR_SET_THP_DISABLE, inherited by fork and exec).
 * 2m: what the programs ask for by madvise(2) is granted; glibc asks for its heap (glibc.malloc.hugetlb=1).
 * FILE gets CPU and wall time of the command with its children, and the most memory in 2 MB pages that was seen:
 * every 0.2 s, the sum over the processes of the group.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* KiB in 2 MB pages of process `pid`, if it belongs to this group. */
static long huge_kib(const char *pid)
{
    char path[300], line[256];
    long kib = 0;
    FILE *f;

    if (getpgid((pid_t)atol(pid)) != getpgrp())
        return 0;
    snprintf(path, sizeof path, "/proc/%s/smaps_rollup", pid);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "AnonHugePages: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib;
}

static long group_huge_kib(void)
{
    DIR *d = opendir("/proc");
    struct dirent *e;
    long sum = 0;

    while (d && (e = readdir(d)))
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9')
            sum += huge_kib(e->d_name);
    if (d)
        closedir(d);
    return sum;
}

int main(int argc, char **argv)
{
    int huge, status;
    long most = 0;
    double start;
    struct rusage r;
    FILE *out;
    pid_t child;

    if (argc < 4 || (strcmp(argv[1], "4k") && strcmp(argv[1], "2m"))) {
        fprintf(stderr, "usage: launch 4k|2m FILE COMMAND [ARGUMENT...]\n");
        return 2;
    }
    huge = argv[1][0] == '2';
    if (prctl(PR_SET_THP_DISABLE, !huge, 0, 0, 0)) {
        perror("launch: PR_SET_THP_DISABLE");
        return 1;
    }
    if (huge)
        setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1);
    else
        unsetenv("GLIBC_TUNABLES");
    start = now();
    child = fork();
    if (child < 0) {
        perror("launch: fork");
        return 1;
    }
    if (child == 0) {
        execvp(argv[3], argv + 3);
        fprintf(stderr, "launch: %s: %s\n", argv[3], strerror(errno));
        _exit(127);
    }
    for (double look = start + 0.2;;) {
        pid_t ended = waitpid(child, &status, WNOHANG);

        if (ended == child)
            break;
        if (now() >= look) {
            long kib = group_huge_kib();

            most = kib > most ? kib : most;
            look = now() + 0.2;
        }
        usleep(2000);
    }
    getrusage(RUSAGE_CHILDREN, &r);
    out = fopen(argv[2], "w");
    if (!out) {
        perror(argv[2]);
        return 1;
    }
    fprintf(out, "region cpu=%.6f wall=%.6f huge_kib=%ld result=0\n",
            (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + 1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec),
            now() - start, most);
    fclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
