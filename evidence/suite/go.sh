#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A game of Go of the program against itself, that many moves.
#   go.sh LEVEL SIZE MOVES
PATH=$PATH:/usr/games
n=0
{
    echo "boardsize $2"
    echo "komi 6.5"
    while [ "$n" -lt "$3" ]; do
        echo "genmove black"
        echo "genmove white"
        n=$((n + 2))
    done
    echo final_score
    echo quit
} | gnugo --mode gtp --level "$1" --seed 1 | cksum
