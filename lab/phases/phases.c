// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * phases: alternates work that is cheap in nested paging with work that is cheap in shadow paging.
 * README.md beside this file has the arguments and what a step does.
 *
 * Workers are processes, one per CPU: an address space with threads on several CPUs would be flushed
 * on the other CPUs by interrupts, which cost exits in either mode.
 */
#define _GNU_SOURCE
#include "phases.h"

#include <getopt.h>
#include <sched.h>
#include <sys/prctl.h>

#define MOST_STEPS (1ul << 32)

static struct settings set = {
    .workers = 2,
    .cycles = 1,
    .steps = 100,
    .rounds = 1,
    .table_pages = 32,
    .reads = 3,
    .chase_mib = 12,
    .hops = 32768,
    .order = {TABLES, CHASE},
    .phases = 2,
};
struct shared *shared;
const char *const phase_names[PHASES] = {"tables", "chase"};
static void (*const step[PHASES])(struct worker *) = {tables_step, chase_step};

void wrong(const struct worker *w, const char *what, uint64_t place, uint64_t found, uint64_t expected)
{
    fprintf(stderr, "phases: worker %u: %s %lu holds %#lx instead of %#lx\n", w->number, what, place, found,
            expected);
    _exit(CORRUPTED);
}

void failed(const char *what)
{
    fprintf(stderr, "phases: %s: %s\n", what, strerror(errno));
    _exit(FAILED);
}

/* A reader of the file sees the counts of one moment: rename replaces the whole file at once. */
static void write_progress(void)
{
    char text[PHASES * 64], other[4096];
    size_t n = 0;

    snprintf(other, sizeof other, "%s.new", set.progress);
    for (int p = 0; p < PHASES; p++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s %lu\n", phase_names[p], shared->done[p]);
    int fd = open(other, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, n) != (ssize_t)n || close(fd) || rename(other, set.progress))
        failed(set.progress);
}

static void advance(enum phase phase)
{
    /* The counts in the file never fall. */
    pthread_mutex_lock(&shared->lock);
    if (phase < PHASES)
        shared->done[phase]++;
    if (set.progress)
        write_progress();
    pthread_mutex_unlock(&shared->lock);
}

/* Workers keep to one CPU each, and their children with them. */
static void pin(unsigned number)
{
    cpu_set_t all, one;
    int cpus, wanted;

    if (sched_getaffinity(0, sizeof all, &all))
        failed("sched_getaffinity");
    cpus = CPU_COUNT(&all);
    wanted = (int)number % cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && wanted-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            if (sched_setaffinity(0, sizeof one, &one))
                failed("sched_setaffinity");
        }
}

static void work(unsigned number)
{
    struct worker w = {.number = number, .set = &set, .sum = mix(number)};

    if (prctl(PR_SET_PDEATHSIG, SIGKILL))
        failed("prctl");
    pin(number);
    chase_begin(&w);
    tables_begin(&w);
    for (uint64_t c = 0; c < set.cycles; c++)
        for (int p = 0; p < set.phases; p++) {
            /* All workers are in the same phase. */
            pthread_barrier_wait(&shared->barrier);
            uint64_t steps = set.of_phase[p] ? set.of_phase[p] : set.steps;
            for (uint64_t s = 0; s < steps; s++) {
                step[set.order[p]](&w);
                advance(set.order[p]);
            }
        }
    shared->sums[number] = w.sum;
    _exit(0);
}

static void share(void)
{
    pthread_barrierattr_t of_barrier;
    pthread_mutexattr_t of_lock;

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        failed("shared memory");
    pthread_barrierattr_init(&of_barrier);
    pthread_barrierattr_setpshared(&of_barrier, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_init(&of_lock);
    pthread_mutexattr_setpshared(&of_lock, PTHREAD_PROCESS_SHARED);
    if (pthread_barrier_init(&shared->barrier, &of_barrier, set.workers) ||
        pthread_mutex_init(&shared->lock, &of_lock))
        failed("a barrier of processes");
}

/* Runs the workers; the first that ends badly ends the others. */
static int run(void)
{
    pid_t pids[MOST_WORKERS];
    int end = 0, status;

    for (unsigned i = 0; i < set.workers; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            failed("fork");
        if (pids[i] == 0)
            work(i);
    }
    for (unsigned left = set.workers; left; left--) {
        if (wait(&status) < 0)
            failed("wait");
        if (status == 0 || end)
            continue;
        if (WIFSIGNALED(status))
            fprintf(stderr, "phases: a worker was ended by signal %d\n", WTERMSIG(status));
        /* A pointer that changed ends as a signal. */
        end = WIFEXITED(status) ? WEXITSTATUS(status) : CORRUPTED;
        for (unsigned i = 0; i < set.workers; i++)
            kill(pids[i], SIGKILL);
    }
    return end;
}

static uint64_t number(const char *name, const char *text, uint64_t least, uint64_t most)
{
    char *end;

    errno = 0;
    uint64_t n = strtoull(text, &end, 10);
    if (errno || *end || end == text || *text == '-' || n < least || n > most) {
        fprintf(stderr, "phases: --%s %s: give a number from %lu to %lu\n", name, text, least, most);
        exit(USAGE);
    }
    return n;
}

static void phases(char *text)
{
    set.phases = 0;
    for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
        char *steps = strchr(word, ':');
        int p = 0;

        if (steps)
            *steps++ = 0;
        while (p < PHASES && strcmp(word, phase_names[p]))
            p++;
        if (p == PHASES || set.phases == MOST_PHASES) {
            fprintf(stderr, "phases: --phases: %s: give up to %d of tables and chase, separated by commas\n",
                    word, MOST_PHASES);
            exit(USAGE);
        }
        set.of_phase[set.phases] = steps ? number("phases", steps, 1, MOST_STEPS) : 0;
        set.order[set.phases++] = (enum phase)p;
    }
}

static void arguments(int argc, char **argv)
{
    static const struct option options[] = {
        {"workers", 1, NULL, 'w'},     {"cycles", 1, NULL, 'c'},      {"steps", 1, NULL, 's'},
        {"phases", 1, NULL, 'p'},      {"rounds", 1, NULL, 'r'},      {"table-pages", 1, NULL, 't'},
        {"chase-mib", 1, NULL, 'm'},   {"hops", 1, NULL, 'h'},        {"reads", 1, NULL, 'R'},       {"progress", 1, NULL, 'f'},
        {NULL, 0, NULL, 0},
    };
    int o;

    while ((o = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (o) {
        case 'w': set.workers = (unsigned)number("workers", optarg, 1, MOST_WORKERS); break;
        case 'c': set.cycles = number("cycles", optarg, 1, 1000000); break;
        case 's': set.steps = number("steps", optarg, 0, MOST_STEPS); break;
        case 'p': phases(optarg); break;
        case 'r': set.rounds = number("rounds", optarg, 1, 1000); break;
        case 't': set.table_pages = number("table-pages", optarg, 2, 512); break;
        case 'R': set.reads = number("reads", optarg, 1, 1000); break;
        case 'm': set.chase_mib = number("chase-mib", optarg, 1, 1ul << 16); break;
        case 'h': set.hops = number("hops", optarg, 1, 1ul << 32); break;
        case 'f': set.progress = optarg; break;
        default: exit(USAGE);
        }
    if (optind == argc && set.phases)
        return;
    fprintf(stderr, "usage: phases [--workers N] [--cycles N] [--steps N] [--phases NAME[:STEPS],...] [--rounds N]\n"
                    "              [--table-pages N] [--reads N] [--chase-mib N] [--hops N] [--progress FILE]\n");
    exit(USAGE);
}

int main(int argc, char **argv)
{
    uint64_t sum = 0;

    arguments(argc, argv);
    share();
    if (set.progress)
        write_progress();
    int end = run();
    if (end)
        return end;
    for (unsigned i = 0; i < set.workers; i++)
        sum += mix(shared->sums[i] + i);
    printf("phases: tables %lu chase %lu checksum %016lx\n", shared->done[TABLES], shared->done[CHASE], sum);
    return 0;
}
