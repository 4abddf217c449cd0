# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# What kernel/build and kernel/debug-kernel share: words, tools, and Debian's or
# Ubuntu's packages of one kernel, downloaded and never installed (installing a
# headers package can pull a kernel in and run update-initramfs).

export LC_ALL=C DEBIAN_FRONTEND=noninteractive
readonly MISSING_FEATURE=77 # the exit status of every tool here for "this machine cannot"
readonly CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/bifold
readonly DEBS=$CACHE/kernel-src
me=${0##*/}
# All series, see series.txt.
mapfile -t ALL_SERIES < <(sed -n 's/^\([0-9.]*\) .*/\1/p' "$(dirname "${BASH_SOURCE[0]}")/series.txt")
# shellcheck disable=SC2034 # for the scripts that source this file
readonly ALL_SERIES
# shellcheck source=kernel/archives.sh
. "$(dirname "${BASH_SOURCE[0]}")/archives.sh"

say() { printf '%s: %s\n' "$me" "$*" >&2; }
die() { local status=$1; shift; printf '%s: error: %s\n' "$me" "$*" >&2; exit "$status"; }
has() { command -v "$1" >/dev/null 2>&1; }

# Runs a command as root: as it is, by sudo, or not at all with word of what to do.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif has sudo; then sudo env DEBIAN_FRONTEND=noninteractive "$@"
    else die "$MISSING_FEATURE" "this needs root and there is no sudo; run as root, then repeat: $*"
    fi
}

# need PACKAGE:PROGRAM|/PATH...: installs the packages whose program or file is not here.
need() {
    local pair missing=()
    for pair; do
        case ${pair#*:} in
            /*) [ -e "${pair#*:}" ] || missing+=("${pair%%:*}") ;;
            *) has "${pair#*:}" || missing+=("${pair%%:*}") ;;
        esac
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "missing and to be installed: ${missing[*]}"
    has apt-get || die "$MISSING_FEATURE" "there is no apt-get here: install these by the means of your system and repeat"
    as_root apt-get update -q -o DPkg::Lock::Timeout=300 >&2 || say "warning: not all package sources could be read"
    as_root apt-get install -q -y --no-install-recommends --no-remove -o DPkg::Lock::Timeout=300 "${missing[@]}" >&2 \
        || die 1 "apt-get could not install ${missing[*]} (its messages are above)"
}

# The versions of package $1 that apt can get, the one it would install first.
versions() {
    { apt-cache "${apt[@]}" policy "$1" 2>/dev/null || true; } | sed -n '/(none)/d; s/^  Candidate: //p'
    { apt-cache "${apt[@]}" madison "$1" 2>/dev/null || true; } | awk -F' *[|] *' '{ print $2 }'
}

# newest SERIES: sets image, release and version to those of the newest linux-image of a
# series such as 6.1, archive to whose packages they are (debian, ubuntu), and source_name to the package of its source.
# The choice is that of the laboratory (crates/guest/src/kernel/series.rs): the
# modules are for its kernel. Status 1: there is none, and why says the reason.
newest() {
    local suites
    has apt-cache || die "$MISSING_FEATURE" "there is no apt-cache here: Debian's packages are what is built from"
    why="apt has no kernel of series $1 here"
    archive=$(sed -n "s/^${1//./\\.} \+\([^ ]*\).*/\1/p" "$(dirname "${BASH_SOURCE[0]}")/series.txt")
    suites=${archive#*:} archive=${archive%%:*}
    archive=${archive:-debian}
    apt=()
    ! newest_here "$1" || return 0
    [ "$suites" != "$archive" ] || return 1
    if ! open_archive "$archive" "$suites"; then why="no kernel of series $1: $why"; return 1; fi
    newest_here "$1"
}

# newest_here SERIES: newest(), of the archive that apt is set for.
newest_here() {
    local names kind='-amd64(-unsigned)?$'
    image='' release='' version=''
    [ "$archive" != ubuntu ] || kind='-generic$'
    # Not the cloud's, not the real-time one. Names stay known after their packages are gone.
    names=$(apt-cache "${apt[@]}" pkgnames "linux-image-$1." | grep -E -- "$kind" | grep -Ev -- '-(cloud|rt)-') || return 1
    # shellcheck disable=SC2086 # one word each
    read -r release < <(apt-cache "${apt[@]}" policy $names | awk '
        /^linux-image-/ { name = $1; sub(/:$/, "", name) }
        /^  Candidate: / && $2 != "(none)" {
            release = name; sub(/^linux-image-/, "", release); sub(/-unsigned$/, "", release)
            n = split(release, part, /[^0-9]+/); key = ""
            for (i = 1; i <= n; i++) if (part[i] != "") key = key sprintf("%09d.", part[i])
            if (key > best) { best = key; found = release }
        }
        END { if (found != "") print found }') || return 1
    image=linux-image-$release
    version=$(versions "$image" | head -n 1)
    if [ -z "$version" ]; then
        image+=-unsigned
        version=$(versions "$image" | head -n 1)
    fi
    source_name=linux-source-$1
    [ "$archive" != ubuntu ] || source_name=linux-source-${release%%-*}
    [ -n "$version" ]
}

# deb PACKAGE VERSION: sets deb to the package's file in the cache, downloading it first if it
# is not there. Of that version and no other: modules built from two versions load and break.
deb() {
    local package=$1 wanted=$2 found new have
    deb=
    for found in "$DEBS/${package}_${wanted//:/%3a}"_*.deb; do
        [ ! -e "$found" ] || deb=$found
    done
    if [ -z "$deb" ]; then
        have=$(versions "$package")
        [ -n "$have" ] || die "$MISSING_FEATURE" "apt has no package $package, which $image ($wanted) needs here; run apt-get update, or wait until your mirror has it"
        grep -qxF -- "$wanted" <<<"$have" || die 1 "$package is of version $(head -n 1 <<<"$have"), but $image of $wanted; both must be the same: run apt-get update, or wait until your mirror has both"
        mkdir -p "$DEBS"
        new=$(mktemp -d "$DEBS/.new-XXXXXX")
        say "downloading $package $wanted"
        # As root apt would drop to user _apt, who may not write here.
        (cd "$new" && apt-get "${apt[@]}" -q -o APT::Sandbox::User=root download "$package=$wanted" >&2) \
            || { rm -rf "$new"; die 1 "apt-get could not download $package=$wanted (its messages are above)"; }
        mv "$new"/*.deb "$DEBS/"
        rmdir "$new"
        for found in "$DEBS/${package}_${wanted//:/%3a}"_*.deb; do deb=$found; done
    fi
    have=$(dpkg-deb -f "$deb" Version) || die 1 "$deb is no Debian package; delete it and repeat"
    [ "$have" = "$wanted" ] || die 1 "$deb holds version $have, but $image is of $wanted; delete it and repeat"
}

# A package's dependencies that match a pattern, without versions.
depends() { dpkg-deb -f "$1" Depends | tr ',|' '\n' | sed 's/^ *//; s/[ :].*//' | grep -E -- "$2" | head -n 1; }

# source_tar: the kernel's source on stdout, as a tar with all in the folder $source_name, out of package file $deb.
source_tar() {
    local file=./usr/src/$source_name.tar.xz unpack=xz
    [ "$archive" != ubuntu ] || file=./usr/src/$source_name/$source_name.tar.bz2 unpack=bzip2
    dpkg-deb --fsys-tarfile "$deb" | tar -xO "$file" | $unpack -dc
}
