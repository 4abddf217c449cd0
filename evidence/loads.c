// SPDX-License-Identifier: Apache-2.0 OR MIT
// 20 million loads among 250 million instructions: how long from a program to its table.
#include <stdio.h>

int main(void)
{
    static unsigned char a[1 << 16];
    unsigned long sum = 0;
    for (unsigned long i = 0; i < 20000000; i++) {
        unsigned long x = ((volatile unsigned char *)a)[i % sizeof a];
        __asm__ volatile(".rept 6\n add $3, %0\n .endr" : "+r"(x));
        sum += x;
    }
    printf("%lu\n", sum);
    return 0;
}
