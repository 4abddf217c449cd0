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
 * Tables are stored and recorded as words of 8 bytes: two entries in 32-bit mode without PAE. PAE's roots have 32
 * bytes, and a frame may hold several beside other data. Such a frame is marked with level 3 as long as it has a root,
 * only the entries of roots count, and each new root describes the frame again.
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
#define WORDS 512 /* of a table */
#define PAE_ROOT 32 /* bytes */

static char *ram;
static uint64_t frames;
static uint8_t *level;
static uint32_t *parents; /* entries that point here */
static uint64_t **copy;

static struct root {
    uint64_t at;   /* physical address */
    unsigned user; /* present entries of the user's part */
} *roots;
static unsigned n_roots, room_roots;

/* Bytes and address bits of an entry, entries of a root and how many of these are the user's. In 32-bit mode the user has three
 * of four gigabytes. */
static unsigned entry_bytes = 8, entry_bits = 9, root_entries = WORDS, user_entries = WORDS / 2;

static bool pae(void)
{
    return opt.levels == 3;
}

/* Level of a frame that holds roots. */
static int root_level(void)
{
    return (int)opt.levels;
}

/* Physical address of the root that CR3 names. */
uint64_t root_at(uint64_t cr3)
{
    return cr3 & (pae() ? ~(uint64_t)(PAE_ROOT - 1) & UINT32_MAX : PTE_ADDR);
}

static void *zeroed(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die("no memory for %zu bytes", bytes);
    return p;
}

void tables_open(void)
{
    if (opt.levels == 2) {
        entry_bytes = 4;
        entry_bits = 10;
        root_entries = 2 * WORDS;
        user_entries = root_entries / 4 * 3;
    } else if (pae()) {
        root_entries = PAE_ROOT / 8;
        user_entries = 3;
    }
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

/* Entry i of a table of these words. */
static uint64_t entry(const uint64_t *words, unsigned i)
{
    return entry_bytes == 8 ? words[i] : words[i / 2] >> (i % 2 * 32) & UINT32_MAX;
}

/* Whether an entry of level `l` maps a page itself. */
static bool is_large(uint64_t e, int l)
{
    return (e & PTE_LARGE) && (l == 2 || (l == 3 && !narrow()));
}

/* Walks the present tables in RAM. */
bool translate(uint64_t cr3, uint64_t gva, uint64_t *gpa)
{
    uint64_t table = root_at(cr3);

    for (int l = root_level(); l >= 1; l--) {
        unsigned shift = PAGE_SHIFT + entry_bits * (unsigned)(l - 1);
        uint64_t i = (gva >> shift) & ((UINT64_C(1) << entry_bits) - 1);
        const char *at = (char *)ram_at(table + i * entry_bytes);
        uint64_t e = 0;
        uint64_t below = (UINT64_C(1) << shift) - 1;

        if (at)
            memcpy(&e, at, entry_bytes);
        if (!(e & PTE_PRESENT))
            return false;
        if (l == 1 || is_large(e, l)) {
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

    if (l == 1 || !(e & PTE_PRESENT) || is_large(e, l))
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

/* Links the tables to which `n` entries from `first` on of a table of level `l` point, or unlinks them. */
static void link_entries(const uint64_t *words, unsigned first, unsigned n, int l)
{
    for (unsigned i = first; l > 1 && i < first + n; i++) {
        uint64_t child = child_of(entry(words, i), l);
        if (child)
            link_child(child, l - 1);
    }
}

static void unlink_entries(const uint64_t *words, unsigned first, unsigned n, int l)
{
    for (unsigned i = first; l > 1 && i < first + n; i++) {
        uint64_t child = child_of(entry(words, i), l);
        if (child)
            unlink_child(child);
    }
}

/* Whether a table's entries are those of roots, which have links of their own. */
static bool holds_roots(int l)
{
    return pae() && l == root_level();
}

static void describe_table(uint64_t gfn)
{
    uint64_t *w = ring_room(1 + WORDS);

    w[0] = bf_head(BF_KIND_TABLE, gfn << 4 | level[gfn]);
    memcpy(w + 1, copy[gfn], WORDS * 8);
}

static void mark(uint64_t gfn, int l)
{
    uint64_t *c = malloc(WORDS * 8);

    if (!c)
        die("no memory for the copy of a page table");
    memcpy(c, ram_at(gfn << PAGE_SHIFT), WORDS * 8);
    level[gfn] = (uint8_t)l;
    copy[gfn] = c;
    if (!holds_roots(l)) {
        link_entries(c, 0, WORDS * 8 / entry_bytes, l);
        describe_table(gfn);
    }
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
    if (!holds_roots(l))
        unlink_entries(c, 0, WORDS * 8 / entry_bytes, l);
    free(c);
}

static struct root *find_root(uint64_t at)
{
    for (unsigned i = 0; i < n_roots; i++)
        if (roots[i].at == at)
            return &roots[i];
    return NULL;
}

/* The number of a root's first entry in its frame. */
static unsigned first_entry(uint64_t at)
{
    return (unsigned)(at & PAGE_MASK) / entry_bytes;
}

/* Whether a vCPU is in this address space. Under KPTI the user and kernel roots of
 * an address space are neighbours, and both count. */
static bool root_in_use(uint64_t at)
{
    uint64_t pair = opt.kpti ? UINT64_C(1) << PAGE_SHIFT : 0;

    for (unsigned i = 0; i < n_vcpus; i++)
        if ((root_at(vcpus[i]->cr3) | pair) == (at | pair))
            return true;
    return false;
}

static void retire_root(struct root *r)
{
    uint64_t at = r->at, gfn = at >> PAGE_SHIFT;

    *r = roots[--n_roots];
    if (holds_roots(root_level()))
        unlink_entries(copy[gfn], first_entry(at), root_entries, root_level());
    unlink_child(gfn);
}

void table_root(uint64_t cr3)
{
    uint64_t at = root_at(cr3), gfn = at >> PAGE_SHIFT;
    struct root *r;

    /* Under KPTI this runs at every entry to and exit from the kernel, so check the level first. */
    if (gfn >= frames || (level[gfn] == root_level() && (!pae() || find_root(at))) || !ram_at(gfn << PAGE_SHIFT))
        return;
    link_child(gfn, root_level());
    if (holds_roots(level[gfn])) {
        memcpy(copy[gfn], ram_at(gfn << PAGE_SHIFT), WORDS * 8);
        link_entries(copy[gfn], first_entry(at), root_entries, root_level());
        describe_table(gfn);
    }
    if (n_roots == room_roots) {
        room_roots = room_roots ? 2 * room_roots : 64;
        roots = realloc(roots, room_roots * sizeof *roots);
        if (!roots)
            die("no memory for %u roots", room_roots);
    }
    r = &roots[n_roots++];
    *r = (struct root){.at = at};
    for (unsigned i = 0; i < user_entries; i++)
        r->user += entry(copy[gfn], first_entry(at) + i) & PTE_PRESENT;
}

/* Called when a vCPU has left this address space. Retires its root if the user's part is empty. */
void table_left(uint64_t cr3)
{
    uint64_t at = root_at(cr3);
    struct root *r = root_in_use(at) ? NULL : find_root(at);

    if (r && !r->user)
        retire_root(r);
}

/* The entries in the word at `gpa` have changed from `old` to `new`. Links and unlinks tables, and counts what `r` has of the user. */
static void word_changed(uint64_t gpa, int l, uint64_t old, uint64_t new, struct root *r, bool linked)
{
    unsigned per_word = 8 / entry_bytes, first = (unsigned)(gpa & PAGE_MASK) / entry_bytes;

    for (unsigned j = 0; j < per_word; j++) {
        uint64_t a = entry(&old, j), b = entry(&new, j), from = child_of(a, l), to = child_of(b, l);

        if (!linked && to && to != from)
            link_child(to, l - 1);
        if (linked && r && first + j - first_entry(r->at) < user_entries)
            r->user += (unsigned)(b & PTE_PRESENT) - (unsigned)(a & PTE_PRESENT);
        if (linked && from && to != from)
            unlink_child(from);
    }
}

/* Records a store of `bytes` bytes at `gpa`, within one marked page. */
void table_store(uint64_t gpa, unsigned bytes, bool pt_write)
{
    uint64_t gfn = gpa >> PAGE_SHIFT, root = 0;
    int l = level[gfn];
    bool roots_here = l == root_level();
    const uint64_t *now = ram_at(gfn << PAGE_SHIFT);
    struct root *r = NULL;

    flush_insns();
    for (uint64_t at = gpa & ~UINT64_C(7); at < gpa + bytes; at += 8) {
        unsigned i = (at & PAGE_MASK) / 8;
        uint64_t old = copy[gfn][i], new = now[i], *w;

        if (roots_here) {
            root = holds_roots(l) ? root_at(at) : gfn << PAGE_SHIFT;
            r = find_root(root);
        }
        if (r && (!pt_write || bytes > 8 || bytes < entry_bytes) && !root_in_use(root)) {
            retire_root(r);
            return;
        }
        if (holds_roots(l) && !r) {
            copy[gfn][i] = new; /* other data */
            continue;
        }
        word_changed(at, l, old, new, r, false);
        copy[gfn][i] = new;
        w = ring_room(3);
        w[0] = bf_head(BF_KIND_PT_STORE, at);
        w[1] = old;
        w[2] = new;
        word_changed(at, l, old, new, r, true);
        if (!level[gfn])
            return; /* the table was linked below itself */
    }
    if (r && !r->user && !root_in_use(root))
        retire_root(r);
}

/* Retires roots that no vCPU uses and whose kernel part differs from the kernel's:
 * their pages were reused without a store that we could notice (DMA). */
static void drop_dead_roots(void)
{
    for (unsigned i = n_roots; i-- > 0;) {
        uint64_t at = roots[i].at, live = root_at(vcpus[0]->cr3);
        const uint64_t *here = ram_at(at & ~PAGE_MASK), *kernel;
        unsigned last = root_entries - 1;

        if (opt.kpti) /* compare user root with user root */
            live = (live & ~(UINT64_C(1) << PAGE_SHIFT)) | (at & UINT64_C(1) << PAGE_SHIFT);
        kernel = ram_at(live & ~PAGE_MASK);
        if (kernel && !root_in_use(at) &&
            ((entry(here, first_entry(at) + last) ^ entry(kernel, first_entry(live) + last)) & ~PTE_AD))
            retire_root(&roots[i]);
    }
}

/* Whether a word of a marked frame belongs to a table. */
static bool in_table(uint64_t gfn, unsigned word)
{
    return !holds_roots(level[gfn]) || find_root(root_at(gfn << PAGE_SHIFT | word * 8));
}

void tables_compare(void)
{
    uint64_t ad = entry_bytes == 8 ? PTE_AD : PTE_AD << 32 | PTE_AD;

    drop_dead_roots();
    for (uint64_t gfn = 0; gfn < frames; gfn++) {
        const uint64_t *now;

        if (!level[gfn])
            continue;
        now = ram_at(gfn << PAGE_SHIFT);
        for (unsigned i = 0; i < WORDS; i++)
            stats[ST_TABLE_BAD] += ((now[i] ^ copy[gfn][i]) & ~ad) != 0 && in_table(gfn, i);
        stats[ST_TABLE] += WORDS;
    }
}
