# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Inserts N keys into a dictionary and looks each up again in another order."""
import sys

n = int(sys.argv[1])
table = {i * 2654435761 % 4294967296: i for i in range(n)}
total = 0
for i in range(n):
    total += table[i * 7919 % n * 2654435761 % 4294967296]
print(total)
