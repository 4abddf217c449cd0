#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A file compressed, and unpacked again as a check.
#   bzip2.sh FILE
set -e
work=$(mktemp -d)
bzip2 -9 -c "$1" >"$work/packed"
bzip2 -dc "$work/packed" | cksum
ls -s "$work/packed" | cut -d' ' -f1
rm -r "$work"
