# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# An initial RAM disk without a tool for it: cpio's "newc".

# entry NAME MODE [FILE|MAJOR MINOR]: one entry of the archive on stdout. The last one is named TRAILER!!!
entry() {
    local size=0 major=0 minor=0
    if [ $# = 3 ]; then size=$(stat -Lc %s "$3"); fi
    if [ $# = 4 ]; then major=$3 minor=$4; fi
    printf '070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\0' \
        0 "$2" 0 0 1 0 "$size" 0 0 "$major" "$minor" $((${#1} + 1)) 0 "$1"
    head -c $(((4 - (110 + ${#1} + 1) % 4) % 4)) /dev/zero
    [ $# != 3 ] || cat "$3"
    head -c $(((4 - size % 4) % 4)) /dev/zero
}
