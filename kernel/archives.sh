# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2034 # packages.sh reads why
#
# Packages of a release that is not this machine's. apt then runs with sources, lists and downloads of its own in
# ~/.cache/bifold/apt-ARCHIVE-SUITE. Nothing of the machine's apt changes, and no such package is installed.
# crates/guest/src/apt.rs uses the same folders in the same way. packages.sh sources this file.

# Options of apt, for the archive that newest() found a series in. None: this machine's own.
apt=()

# archive_uri ARCHIVE: where ubuntu's or debian's archive is: as the variable UBUNTU or DEBIAN says, else where this
# machine has its own packages from.
archive_uri() {
    local variable=${1^^} uri
    uri=${!variable:-}
    # Suites such as -security may have an archive of their own.
    # shellcheck disable=SC2016 # apt's own variables
    [ -n "$uri" ] || uri=$(apt-get indextargets --format '$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(SUITE)' 'Created-By: Packages' 2>/dev/null \
        | awk -F'|' -v a="$1" 'tolower($2) == a && tolower($3) == a && $4 == "main" && $5 !~ /-/ { if (!n++) print $1 }')
    printf '%s\n' "${uri%/}"
}

# keyring ARCHIVE ROOT: the file with the keys that sign the archive. Without its package installed, out of that
# package, which this machine's apt has checked.
keyring() {
    local file=/usr/share/keyrings/$1-archive-keyring.gpg package=$1-archive-keyring tmp
    [ "$1" != ubuntu ] || package=ubuntu-keyring
    if [ ! -e "$file" ]; then
        file=$2/keyring/$file
        if [ ! -e "$file" ]; then
            tmp=$(mktemp -d "$2/.new-XXXXXX")
            (cd "$tmp" && apt-get -q -o APT::Sandbox::User=root download "$package" && dpkg-deb -x ./*.deb keyring && mkdir -p "$2/keyring" \
                && cp -a keyring/. "$2/keyring/") >"$2/log" 2>&1 || true
            rm -rf "$tmp"
        fi
    fi
    [ -e "$file" ] && realpath -s "$file"
}

# open_archive ARCHIVE SUITE,...: sets apt for that archive, and reads its lists of packages if they are a week old.
# Status 1: there is no such archive here, and why says the reason.
open_archive() {
    local root=$CACHE/apt-$1-${2%%,*} uri keys sources
    mkdir -p "$root/lists/partial" "$root/cache/archives/partial"
    uri=$(archive_uri "$1")
    # As given before: the laboratory then needs no variable.
    [ -n "$uri" ] || uri=$(sed -n 's/^URIs: //p' "$root/archive.sources" 2>/dev/null) || true
    if [ -z "$uri" ]; then why="${1^^}=URI names no archive of ${1^}"; return 1; fi
    keys=$(keyring "$1" "$root") || { why="the keys of ${1^}'s archive are not to be had (apt has no package of its keyring)"; return 1; }
    apt=(-o "Dir::Etc::sourcelist=$root/archive.sources" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferences=/dev/null
        -o Dir::Etc::preferencesparts=/dev/null -o "Dir::State=$root" -o "Dir::State::lists=$root/lists" -o Dir::State::status=/dev/null
        -o "Dir::Cache=$root/cache" -o APT::Architecture=amd64 -o APT::Architectures=amd64)
    sources=$(printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: amd64\nSigned-By: %s\n' "$uri" "${2//,/ }" "$keys")
    [ "$sources" != "$(cat "$root/archive.sources" 2>/dev/null)" ] || [ -z "$(find "$root/read" -mtime -7 2>/dev/null)" ] || return 0
    say "reading the package lists of ${1^}'s ${2%%,*}"
    printf '%s\n' "$sources" >"$root/archive.sources"
    if ! apt-get "${apt[@]}" -q -o APT::Sandbox::User=root -o Acquire::Languages=none -o APT::Update::Error-Mode=any update >"$root/log" 2>&1; then
        # Old lists are better than none.
        if [ ! -e "$root/read" ]; then
            sed -n 's/^[EW]: */  /p' "$root/log" >&2
            why="the package lists of ${1^}'s ${2%%,*} cannot be read (above)"
            return 1
        fi
        say "warning: they cannot be read ($root/log); going on with older ones"
    fi
    touch "$root/read"
}

# foreign_programs TOOLS DIR...: lets the programs below the folders use the C library and the libraries in TOOLS,
# where this machine's own may be too old for them.
foreign_programs() {
    local tools=$1 file
    shift
    need patchelf:patchelf
    while IFS= read -r -d '' file; do
        patchelf --print-interpreter "$file" >/dev/null 2>&1 || continue
        # RPATH and not RUNPATH: for the libraries that libraries need, too.
        patchelf --set-interpreter "$tools/usr/lib64/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$tools/usr/lib/x86_64-linux-gnu" "$file" \
            || die 1 "$file cannot be changed to use the libraries in $tools"
    done < <(find "$@" -type f -perm -u+x -print0)
}

# foreign_tools COMPILER: sets tools, a folder with the compiler of the archive and what it needs, of which usr/bin
# belongs into PATH. The kernel's own compiler: a build by another lacks options that the kernel was configured with.
foreign_tools() {
    local root new deb
    root=$(printf '%s\n' "${apt[@]}" | sed -n 's/^Dir::State=//p')
    tools=$root/$1
    [ ! -e "$tools/complete" ] || return 0
    say "downloading $1 and its libraries (80 MB, once; unpacked into $tools, not installed)"
    # The libraries are those of the kernel's build tools.
    apt-get "${apt[@]}" -q -y -o APT::Sandbox::User=root -o Debug::NoLocking=1 --no-install-recommends --download-only install \
        "$1" binutils libelf1t64 libdw1t64 libssl3t64 zlib1g >"$root/log" 2>&1 || { tail -n 5 "$root/log" >&2; die 1 "apt-get could not download $1 (above)"; }
    new=$root/.new-$1
    rm -rf "$new" "$tools"
    mkdir -p "$new"/usr/{bin,lib,lib64,sbin}
    for deb in bin lib lib64 sbin; do ln -s "usr/$deb" "$new/$deb"; done
    for deb in "$root"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$new" --exclude=./usr/share || die 1 "$deb cannot be unpacked; delete it and repeat"
    done
    rm -f "$root"/cache/archives/*.deb
    mv "$new" "$tools"
    foreign_programs "$tools" "$tools/usr/bin/" "$tools/usr/lib/" "$tools/usr/libexec/"
    "$tools/usr/bin/$1" --version >/dev/null || die 1 "$tools/usr/bin/$1 does not run here"
    : >"$tools/complete"
}
