#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# What scripts of builds and systems do all day: short processes, pipes and small files.
#   shell.sh TURNS
work=$(mktemp -d) || exit 1
n=0
while [ "$n" -lt "$1" ]; do
    n=$(expr "$n" + 1)
    echo "name$n value$(expr "$n" '*' 7 % 31)" >>"$work/table"
    word=$(tail -n 1 "$work/table" | sed 's/^name\([0-9]*\) /\1:/' | cut -d: -f2)
    case $(grep -c "$word" "$work/table") in
        1) cp "$work/table" "$work/$word" ;;
        *) test -f "$work/$word" && cat "$work/$word" | sort -u | head -n 20 | tr a-z A-Z >"$work/$word.new" && mv "$work/$word.new" "$work/$word" ;;
    esac
done
ls "$work" | wc -l
cat "$work"/* | cksum
rm -r "$work"
