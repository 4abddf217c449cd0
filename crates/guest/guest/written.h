// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Counts what the command wrote to the upper layer of the overlay over the host's
 * root, and sends it as a tar archive (ustar, with GNU's long names) if the host
 * asks. The caller has made the layer its root directory.
 */
#ifndef BIFOLD_WRITTEN_H
#define BIFOLD_WRITTEN_H

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define TAR_BLOCK 512
#define TAR_NAME 100

static long written_files;
static long long written_bytes, layer_bytes;
static int archive = -1;

static void put(const void *data, size_t n)
{
    const char *p = data;
    ssize_t w;

    for (; archive >= 0 && n > 0; p += w, n -= (size_t)w) {
        w = write(archive, p, n);
        if (w <= 0) {
            /* The host has gone, or its disk is full: an archive without its end says so. */
            close(archive);
            archive = -1;
            return;
        }
    }
}

static void pad(long long size)
{
    static const char zeros[TAR_BLOCK];

    put(zeros, (size_t)(-size & (TAR_BLOCK - 1)));
}

static void header(const char *name, const char *link, const struct stat *st, long long size, char type)
{
    char h[TAR_BLOCK] = "";
    unsigned sum = 0;

    strncpy(h, name, TAR_NAME);
    snprintf(h + 100, 8, "%07o", (unsigned)st->st_mode & 07777);
    snprintf(h + 108, 8, "%07o", 0);
    snprintf(h + 116, 8, "%07o", 0);
    snprintf(h + 124, 12, "%011llo", size);
    snprintf(h + 136, 12, "%011llo", (long long)st->st_mtime);
    memset(h + 148, ' ', 8);
    h[156] = type;
    strncpy(h + 157, link, TAR_NAME);
    memcpy(h + 257, "ustar  ", 8);
    for (int i = 0; i < TAR_BLOCK; i++)
        sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
    put(h, sizeof h);
}

/* A name too long for a header goes before it, as the contents of an entry. */
static void long_name(const char *name, char type)
{
    static const struct stat none;
    size_t n = strlen(name);

    if (n <= TAR_NAME)
        return;
    header("././@LongLink", "", &none, (long long)n + 1, type);
    put(name, n + 1);
    pad((long long)n + 1);
}

static void contents_of(const char *path, long long size)
{
    static char buffer[1 << 18];
    static const char zeros[TAR_BLOCK];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    long long left = size;
    ssize_t n;

    while (left > 0 && (n = read(fd, buffer, left < (long long)sizeof buffer ? (size_t)left : sizeof buffer)) > 0) {
        put(buffer, (size_t)n);
        left -= n;
    }
    close(fd);
    /* The header has promised so much. */
    for (; left > 0; left -= TAR_BLOCK)
        put(zeros, left < TAR_BLOCK ? (size_t)left : TAR_BLOCK);
    pad(size);
}

static int one_written(const char *path, const struct stat *st, int type, struct FTW *at)
{
    const char *name = path + strspn(path, "/");
    char link[4096] = "";
    ssize_t n;

    (void)at;
    if (type == FTW_D && *name) {
        long_name(name, 'L');
        header(name, "", st, 0, '5');
    } else if (S_ISLNK(st->st_mode)) {
        written_files++;
        n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = 0;
        long_name(link, 'K');
        long_name(name, 'L');
        header(name, link, st, 0, '2');
    } else if (S_ISREG(st->st_mode)) {
        written_files++;
        written_bytes += (long long)st->st_blocks * 512;
        /* A sparse file can be larger than any disk. */
        if (archive < 0 || st->st_size > layer_bytes)
            return 0;
        long_name(name, 'L');
        header(name, "", st, st->st_size, '0');
        contents_of(path, st->st_size);
    }
    return 0;
}

/* Walks the layer; `to` is where the archive goes, or -1. Returns whether the layer is full. */
static int walk_written(int to)
{
    static const char end[2 * TAR_BLOCK];
    struct statvfs fs = {0};
    int full;

    statvfs("/", &fs);
    layer_bytes = (long long)fs.f_blocks * (long long)fs.f_frsize;
    full = fs.f_blocks && fs.f_bavail < fs.f_blocks / 1000;
    archive = to;
    nftw("/", one_written, 32, FTW_PHYS);
    put(end, sizeof end);
    return full;
}

#endif
