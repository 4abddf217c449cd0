// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Follows the guest's page tables. Every frame that a walk from a known root can
 * reach is marked with its level, has a copy, and counts the entries that point to
 * it. A store to a marked frame becomes a PT_STORE with the old entry (from the copy)
 * and the new entry (from RAM). Linking a table first describes the table and all
 * tables below it; unlinking retires tables to which no entry points any more.
 *
 * Roots have no parent entry. A root is retired when it is no vCPU's CR3 and either
 * its user half is empty (exit_mmap has emptied it), or it is written in a way in
 * which no kernel writes a PGD (its page was reused). Retiring a root too early does
 * no harm, because loading it marks it again.
 *
 * The walker sets A and D bits without a store that we could notice, so comparisons
 * ignore them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "plugin.h"

#define GIB4 (UINT64_C(4) << 30)
#define ENTRIES 512
#define ROOT_LEVEL 4

static char *ram;
static uint64_t frames;
static uint8_t *level;
static uint32_t *parents; /* entries that point here */
static uint64_t **copy;

static struct root {
    uint64_t gfn;
    unsigned user; /* present entries of the user half */
} *roots;
static unsigned n_roots, room_roots;

static void *zeroed(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die("no memory for %zu bytes", bytes);
    return p;
}

void tables_open(void)
{
    /* Written to in one place only: a perf buffer's read mark (log.c). */
    ram = mmap(NULL, opt.ram_bytes, opt.where ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
               opt.ram_fd, 0);
    if (ram == MAP_FAILED)
        die("cannot map the guest's memory: %s", strerror(errno));
    frames = opt.ram_bytes > opt.below_4g ? (GIB4 + opt.ram_bytes - opt.below_4g) >> PAGE_SHIFT
                                          : opt.ram_bytes >> PAGE_SHIFT;
    level = zeroed(frames);
    parents = zeroed(frames * sizeof *parents);
    copy = zeroed(frames * sizeof *copy);
}

/* The place of a guest-physical address in RAM, or NULL (hole, device, beyond RAM). */
uint64_t *ram_at(uint64_t gpa)
{
    if (gpa < opt.below_4g)
        return gpa < opt.ram_bytes ? (uint64_t *)(ram + gpa) : NULL;
    if (gpa < GIB4 || gpa >= frames << PAGE_SHIFT)
        return NULL;
    return (uint64_t *)(ram + opt.below_4g + (gpa - GIB4));
}

static void resident(uint64_t from, uint64_t to, uint64_t gpa)
{
    uint64_t *w;

    if (from >= to)
        return;
    w = ring_room(2);
    w[0] = bf_head(BF_KIND_RESIDENT, gpa >> PAGE_SHIFT);
    w[1] = (to - from) >> PAGE_SHIFT;
}

/* Records the frames that were touched so far. RAM is a sparse file without the other frames. */
void resident_frames(void)
{
    off_t from = 0, to = 0;

    while ((from = lseek(opt.ram_fd, to, SEEK_DATA)) >= 0) {
        uint64_t low = (uint64_t)from, high, hole = opt.below_4g;

        to = lseek(opt.ram_fd, from, SEEK_HOLE);
        if (to < 0)
            break;
        high = (uint64_t)to;
        resident(low, high < hole ? high : hole, low);
        if (low < hole)
            low = hole;
        resident(low, high, GIB4 + low - hole);
    }
    if (errno != ENXIO)
        die("cannot ask which of the guest's memory was touched: %s", strerror(errno));
}

bool is_table(uint64_t gfn)
{
    return gfn < frames && level[gfn];
}

/* Walks the present tables in RAM. */
bool translate(uint64_t cr3, uint64_t gva, uint64_t *gpa)
{
    uint64_t table = cr3 & PTE_ADDR;

    for (int l = ROOT_LEVEL; l >= 1; l--) {
        unsigned shift = PAGE_SHIFT + 9 * (unsigned)(l - 1);
        uint64_t *at = ram_at(table + ((gva >> shift) & (ENTRIES - 1)) * 8);
        uint64_t e = at ? *at : 0;
        uint64_t below = (UINT64_C(1) << shift) - 1;

        if (!(e & PTE_PRESENT))
            return false;
        if (l == 1 || ((l == 2 || l == 3) && (e & PTE_LARGE))) {
            *gpa = (e & PTE_ADDR & ~below) | (gva & below);
            return true;
        }
        table = e & PTE_ADDR;
    }
    return false;
}

/* The table to which an entry of a table of level `l` points, or 0. Frame 0 is
 * never a page table, because Linux reserves it. */
static uint64_t child_of(uint64_t e, int l)
{
    uint64_t gfn = (e & PTE_ADDR) >> PAGE_SHIFT;

    if (l == 1 || !(e & PTE_PRESENT) || (l < ROOT_LEVEL && (e & PTE_LARGE)))
        return 0;
    return gfn < frames && ram_at(gfn << PAGE_SHIFT) ? gfn : 0;
}

static void mark(uint64_t gfn, int l);
static void retire(uint64_t gfn);

static void link_child(uint64_t gfn, int l)
{
    if (!level[gfn])
        mark(gfn, l);
    parents[gfn]++;
}

static void unlink_child(uint64_t gfn)
{
    if (parents[gfn] && --parents[gfn] == 0)
        retire(gfn);
}

static void mark(uint64_t gfn, int l)
{
    uint64_t *c = malloc(ENTRIES * 8), *w;

    if (!c)
        die("no memory for the copy of a page table");
    memcpy(c, ram_at(gfn << PAGE_SHIFT), ENTRIES * 8);
    level[gfn] = (uint8_t)l;
    copy[gfn] = c;
    for (int i = 0; l > 1 && i < ENTRIES; i++) {
        uint64_t child = child_of(c[i], l);
        if (child)
            link_child(child, l - 1);
    }
    w = ring_room(1 + ENTRIES);
    w[0] = bf_head(BF_KIND_TABLE, gfn << 4 | (uint64_t)l);
    memcpy(w + 1, c, ENTRIES * 8);
    /* Stores to this page must be noticed from now on. */
    forget_translations();
}

static void retire(uint64_t gfn)
{
    uint64_t *c = copy[gfn];
    int l = level[gfn];

    if (!l)
        return;
    level[gfn] = 0;
    copy[gfn] = NULL;
    emit1(BF_KIND_RETIRE, gfn);
    for (int i = 0; l > 1 && i < ENTRIES; i++) {
        uint64_t child = child_of(c[i], l);
        if (child)
            unlink_child(child);
    }
    free(c);
}

static struct root *find_root(uint64_t gfn)
{
    for (unsigned i = 0; i < n_roots; i++)
        if (roots[i].gfn == gfn)
            return &roots[i];
    return NULL;
}

/* Whether a vCPU is in this address space. Under KPTI the user and kernel roots of
 * an address space are neighbours, and both count. */
static bool root_in_use(uint64_t gfn)
{
    uint64_t pair = opt.kpti ? 1 : 0;

    for (unsigned i = 0; i < n_vcpus; i++)
        if (((vcpus[i]->cr3 & PTE_ADDR) >> PAGE_SHIFT | pair) == (gfn | pair))
            return true;
    return false;
}

static void retire_root(struct root *r)
{
    uint64_t gfn = r->gfn;

    *r = roots[--n_roots];
    unlink_child(gfn);
}

void table_root(uint64_t cr3)
{
    uint64_t gfn = (cr3 & PTE_ADDR) >> PAGE_SHIFT;
    struct root *r;

    /* Under KPTI this runs at every entry to and exit from the kernel, so check the level first. */
    if (gfn >= frames || level[gfn] == ROOT_LEVEL || !ram_at(gfn << PAGE_SHIFT))
        return;
    link_child(gfn, ROOT_LEVEL);
    if (n_roots == room_roots) {
        room_roots = room_roots ? 2 * room_roots : 64;
        roots = realloc(roots, room_roots * sizeof *roots);
        if (!roots)
            die("no memory for %u roots", room_roots);
    }
    r = &roots[n_roots++];
    *r = (struct root){.gfn = gfn};
    for (int i = 0; i < ENTRIES / 2; i++)
        r->user += copy[gfn][i] & PTE_PRESENT;
}

/* Called when a vCPU has left this address space. Retires its root if the user half is empty. */
void table_left(uint64_t cr3)
{
    uint64_t gfn = (cr3 & PTE_ADDR) >> PAGE_SHIFT;
    struct root *r = root_in_use(gfn) ? NULL : find_root(gfn);

    if (r && !r->user)
        retire_root(r);
}

/* Records a store of `bytes` bytes at `gpa`, within one marked page. */
void table_store(uint64_t gpa, unsigned bytes, bool pt_write)
{
    uint64_t gfn = gpa >> PAGE_SHIFT;
    int l = level[gfn];
    struct root *r = l == ROOT_LEVEL ? find_root(gfn) : NULL;
    const uint64_t *now = ram_at(gfn << PAGE_SHIFT);

    flush_insns();
    if (r && (!pt_write || bytes != 8) && !root_in_use(gfn)) {
        retire_root(r);
        return;
    }
    for (uint64_t at = gpa & ~UINT64_C(7); at < gpa + bytes; at += 8) {
        unsigned i = (at & PAGE_MASK) / 8;
        uint64_t old = copy[gfn][i], new = now[i];
        uint64_t from = child_of(old, l), to = child_of(new, l), *w;

        if (to && to != from)
            link_child(to, l - 1);
        copy[gfn][i] = new;
        w = ring_room(3);
        w[0] = bf_head(BF_KIND_PT_STORE, at);
        w[1] = old;
        w[2] = new;
        if (r && i < ENTRIES / 2)
            r->user += (unsigned)(new & PTE_PRESENT) - (unsigned)(old & PTE_PRESENT);
        if (from && to != from)
            unlink_child(from);
        if (!level[gfn])
            return; /* the table was linked below itself */
    }
    if (r && !r->user && !root_in_use(gfn))
        retire_root(r);
}

/* Retires roots that no vCPU uses and whose kernel half differs from the kernel's:
 * their pages were reused without a store that we could notice (DMA). */
static void drop_dead_roots(void)
{
    const uint64_t last = (ENTRIES - 1) * 8;

    for (unsigned i = n_roots; i-- > 0;) {
        uint64_t gfn = roots[i].gfn, live = vcpus[0]->cr3 & PTE_ADDR;
        const uint64_t *e = ram_at(gfn << PAGE_SHIFT | last), *kernel;

        if (opt.kpti) /* compare user root with user root */
            live = (live & ~(UINT64_C(1) << PAGE_SHIFT)) | (gfn & 1) << PAGE_SHIFT;
        kernel = ram_at(live | last);
        if (kernel && !root_in_use(gfn) && ((*e ^ *kernel) & ~PTE_AD))
            retire_root(&roots[i]);
    }
}

void tables_compare(void)
{
    drop_dead_roots();
    for (uint64_t gfn = 0; gfn < frames; gfn++) {
        const uint64_t *now;

        if (!level[gfn])
            continue;
        now = ram_at(gfn << PAGE_SHIFT);
        for (int i = 0; i < ENTRIES; i++)
            stats[ST_TABLE_BAD] += ((now[i] ^ copy[gfn][i]) & ~PTE_AD) != 0;
        stats[ST_TABLE] += ENTRIES;
    }
}
