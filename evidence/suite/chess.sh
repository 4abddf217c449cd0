#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A chess engine on fixed positions with a large table of positions seen.
#   chess.sh HASH_MIB DEPTH
PATH=$PATH:/usr/games
stockfish bench "$1" 1 "$2" default depth 2>&1 | grep -e '^Nodes searched'
