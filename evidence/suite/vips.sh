#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A photograph's way through an image library: turned, blurred, sharpened, made smaller.
#   vips.sh PICTURE
set -e
export VIPS_CONCURRENCY=1
work=$(mktemp -d)
vips rot "$1" "$work/a.v" d90
vips gaussblur "$work/a.v" "$work/b.v" 3
vips sharpen "$work/b.v" "$work/c.v"
vips resize "$work/c.v" "$work/d.v" 0.61
vips hist_equal "$work/d.v" "$work/e.ppm"
cksum <"$work/e.ppm"
rm -r "$work"
