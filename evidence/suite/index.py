# SPDX-License-Identifier: Apache-2.0 OR MIT
"""An index of a text: an object per place of a word, queries by intersection, then a
ranking by repeated passes over the objects."""
import random
import sys


class Place:
    __slots__ = ("word", "line", "column", "weight", "after")

    def __init__(self, word, line, column):
        self.word, self.line, self.column, self.weight, self.after = word, line, column, 1.0, None


lines, index, places = 0, {}, []
with open(sys.argv[1]) as text:
    for number, line in zip(range(int(sys.argv[2])), text):
        before = None
        for column, word in enumerate(line.split()):
            place = Place(word, number, column)
            index.setdefault(word, []).append(place)
            places.append(place)
            if before:
                before.after = place
            before = place
        lines += 1

rng = random.Random(1)
vocabulary = sorted(index)
hits = 0
for _ in range(int(sys.argv[3])):
    first, second = (index[rng.choice(vocabulary)] for _ in range(2))
    hits += len({place.line for place in first} & {place.line for place in second})

rng.shuffle(places)
for place in places:
    if place.after:
        place.after.weight += place.weight / len(index[place.word])
best = sorted(places, key=lambda place: (-place.weight, place.line, place.column))[:5]
for place in best:
    print(place.word, place.line, place.column, round(place.weight, 6))
print(lines, "lines", len(places), "places", hits, "hits")
