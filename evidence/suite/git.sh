#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A day of version control on a generated history: changes per commit, who wrote which
# line, a search through old versions, then everything repacked.
#   git.sh REPOSITORY
set -e
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME=/tmp
work=$(mktemp -d)
git -c safe.directory='*' clone -q --no-local "$1" "$work/clone"
cd "$work/clone"
git log --stat -n 250 | cksum
git ls-files | head -n 12 | while read -r file; do git blame -s "$file" | tail -n 1; done | cksum
git log -n 400 -S martel --oneline | wc -l
git -c pack.threads=1 repack -q -a -d -f --depth=20 --window=10
git fsck --full 2>/dev/null
rm -rf "$work"
