# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
#
# What evidence/tools/suite, evidence/tools/lab-builds, lab/bochs/build and lab/qemu/build share: Debian's packages and sources. The script that sources this file
# has say, die, has, MISSING_FEATURE and the folder CACHE.

# Runs a command as root: as it is, by sudo, or not at all with word of what to do.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif has sudo; then sudo env DEBIAN_FRONTEND=noninteractive "$@"
    else die $MISSING_FEATURE "this needs root and there is no sudo; run as root, then repeat: $*"
    fi
}

# install_missing PACKAGE...: installs those that are not installed, without a prompt.
install_missing() {
    local missing=() package
    for package; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    has apt-get || die $MISSING_FEATURE "there is no apt-get here: install ${missing[*]} by the means of your system and repeat"
    say "missing and to be installed: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-cache show "${missing[@]}" >/dev/null 2>&1 || as_root apt-get update -q -o DPkg::Lock::Timeout=300 >&2 \
        || say "warning: not all package sources could be read (see above); going on with those that can"
    as_root apt-get install -q -y --no-install-recommends --no-remove -o DPkg::Lock::Timeout=300 "${missing[@]}" >&2 \
        || die 1 "apt-get could not install ${missing[*]} (its messages are above); mend the package sources or the network and repeat"
}

# One file of the archive this machine has its packages from, checked: URI DEST SHA256.
fetch() {
    /usr/lib/apt/apt-helper download-file "$1" "$2" "SHA256:$3" >"$CACHE/fetch.log" 2>&1 \
        || { cat "$CACHE/fetch.log" >&2; die 1 "$1 could not be fetched; if its content has changed since, apt-get update and repeat"; }
}

# Sets uri, release and index: where this machine has Debian's main archive from, its own release, and apt's
# list of its packages.
debian_archive() {
    # shellcheck disable=SC2016 # apt's own variables
    IFS='|' read -r uri release index < <(apt-get indextargets --format '$(REPO_URI)|$(CODENAME)|$(FILENAME)|$(ORIGIN)|$(LABEL)|$(COMPONENT)' 'Created-By: Packages' \
        | awk -F'|' -v c="$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")" '$2 == c && $4 == "Debian" && $5 == "Debian" && $6 == "main" { print $1 "|" $2 "|" $3; exit }') \
        || die $MISSING_FEATURE "no source of Debian's main archive was found to fetch sources from; is this Debian, and was apt-get update run?"
    uri=${uri%/}/
}

# Unpacks the upstream sources of Debian source package $1 into $CACHE/source/$1. They
# come from where this machine has its release from, and are checked against what apt
# has verified, so that no deb-src entry is needed.
source_package() {
    local name=$1 uri release index sum list file
    [ ! -d "$CACHE/source/$name" ] || return 0
    mkdir -p "$CACHE/source"
    debian_archive
    list=$CACHE/source/Sources.$release
    if [ ! -s "$list" ]; then
        sum=$(awk '/^SHA256:/ { on = 1; next } /^[^ ]/ { on = 0 } on && $3 == "main/source/Sources.xz" { print $1 }' "${index%_main_*}_InRelease")
        [ -n "$sum" ] || die 1 "$release does not list main/source/Sources.xz; apt-get update and repeat"
        say "fetching the list of $release's source packages"
        fetch "${uri}dists/$release/main/source/Sources.xz" "$list.xz" "$sum"
        xz -dc "$list.xz" >"$list.new"
        rm "$list.xz"
        mv "$list.new" "$list"
    fi
    file=$(awk -v RS= -v name="$name" 'index($0 "\n", "Package: " name "\n") == 1 { print; exit }' "$list" | awk '
        /^Directory: / { folder = $2 }
        /^Checksums-Sha256:/ { on = 1; next }
        /^[^ ]/ { on = 0 }
        on && $3 ~ /\.orig\.tar\.[a-z0-9]+$/ { sum = $1; file = $3 }
        END { if (file) print folder "/" file, sum }')
    [ -n "$file" ] || die 1 "$release has no source package $name"
    sum=${file##* } file=${file% *}
    say "fetching the sources of $name"
    fetch "$uri$file" "$CACHE/source/${file##*/}" "$sum"
    rm -rf "$CACHE/source/$name.new"
    mkdir "$CACHE/source/$name.new"
    tar -xf "$CACHE/source/${file##*/}" -C "$CACHE/source/$name.new" --strip-components=1
    # Make must not find files that are newer than what is made of them, whatever the clock.
    find "$CACHE/source/$name.new" -exec touch -d @1500000000 {} +
    rm "$CACHE/source/${file##*/}"
    mv "$CACHE/source/$name.new" "$CACHE/source/$name"
}

# patched_tree ARCHIVE SHA256 SOURCE PATCHES WHAT: unpacks the sources of WHAT into a new $CACHE/tree and applies the patches of a
# folder. SOURCE is an archive or a folder; if it is empty, ARCHIVE of Debian's main archive is fetched once and checked.
patched_tree() {
    local archive=$1 sum=$2 source=$3 patches=$4 what=$5 tree=$CACHE/tree uri release index p
    rm -rf "$tree"
    mkdir "$tree"
    if [ -z "$source" ]; then
        source=$CACHE/${archive##*/}
        if [ ! -e "$source" ]; then
            debian_archive
            say "fetching the sources of $what"
            fetch "$uri$archive" "$source.new" "$sum"
            mv "$source.new" "$source"
        fi
    fi
    if [ -d "$source" ]; then cp -a "$source/." "$tree/"
    elif [ -f "$source" ]; then tar -xf "$source" -C "$tree" --strip-components=1 || die 1 "$source cannot be unpacked"
    else die 1 "$source: there is no such file or folder"
    fi
    [ -x "$tree/configure" ] || die 1 "$source has no configure script: it is not the source of $what"
    for p in "$patches"/*.patch; do
        patch -d "$tree" -p1 --fuzz=0 --silent <"$p" || die 1 "${p##*/} does not fit: is $source $what?"
    done
}
