/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Markers for `bifold compare --from-marker -- CMD`: only what a program does
 * between bifold_begin() and bifold_end() counts. A program may have many such
 * pairs: each is a region with figures of its own. bifold_begin() within a region
 * and bifold_end() outside of one do nothing. Each marker executes one CPUID
 * instruction of a leaf that no processor has: outside a guest of Bifold's the
 * instruction changes nothing and takes about 100 cycles (1,500 in a virtual
 * machine). Rust programs have the same in the crate bifold-marker.
 */
#ifndef BIFOLD_H
#define BIFOLD_H

#if defined(__x86_64__) || defined(__i386__)
static inline void bifold_marker(unsigned int code)
{
    unsigned int leaf = 0x4249464f, ebx, edx; /* "BIFO" */

    __asm__ volatile("cpuid" : "+a"(leaf), "=b"(ebx), "+c"(code), "=d"(edx) : : "memory");
}
#else
static inline void bifold_marker(unsigned int code)
{
    (void)code;
}
#endif

static inline void bifold_begin(void)
{
    bifold_marker(0x100);
}

static inline void bifold_end(void)
{
    bifold_marker(0x200);
}

#endif
