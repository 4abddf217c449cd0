#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A package's configure script: hundreds of tiny compilations, greps and seds.
#   configure.sh SOURCES
set -e
work=$(mktemp -d)
cp -r "$1" "$work/source"
cd "$work/source"
./configure --quiet --disable-nls --disable-dependency-tracking
grep -c define config.h
rm -r "$work"
