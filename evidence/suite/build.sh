#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A program built from its sources: every file compiled, archived and linked by make.
#   build.sh SOURCES
set -e
work=$(mktemp -d)
cp -r "$1" "$work/source"
cd "$work/source/src"
# No options of the platform, so that nothing but a C library is needed.
make -s -j1 CFLAGS='-O1 -Wall' MYCFLAGS= PLATS= all
./lua -e 'local t = {} for i = 1, 1000 do t[i] = i * i end print(#t, t[1000])'
rm -r "$work"
