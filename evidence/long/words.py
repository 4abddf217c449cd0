# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Counts words and sorts them by frequency, again and again.

words.py ROUNDS
"""
import random
import sys

random.seed(1)
total = 0
for _ in range(int(sys.argv[1])):
    words = [str(random.random())[2:7] for _ in range(150000)]
    count = {}
    for word in words:
        count[word] = count.get(word, 0) + 1
    tree = sorted(count.items(), key=lambda kv: (-kv[1], kv[0]))
    total += len(tree)
print(total)
