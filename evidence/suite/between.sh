#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A build between two phases of a pointer chase.
#   between.sh PHASES_PROGRAM MIB STEPS TURNS
set -e
work=$(mktemp -d)
"$1" chase "$2" "$3"
turn=0
while [ "$turn" -lt "$4" ]; do
    for part in DXT RECT_PACK IMAGE_WRITE PERLIN HEXWAVE; do
        header=$(echo "$part" | tr A-Z a-z)
        printf '#define STB_%s_IMPLEMENTATION\n#include <stb/stb_%s.h>\n' "$part" "$header" >"$work/$header.c"
        gcc -O1 -c "$work/$header.c" -o "$work/$header.o"
    done
    ar rc "$work/all.a" "$work"/*.o
    turn=$((turn + 1))
done
nm "$work/all.a" | grep -c ' T '
"$1" chase "$2" "$3"
rm -r "$work"
