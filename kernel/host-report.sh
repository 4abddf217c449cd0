#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The file that kernel/vmtest-host leaves to be sent. DIR/report has its parts, DIR/out its place.
#
#   host-report.sh DIR so-far           writes the file as far as the run has come
#   host-report.sh DIR finish WORDS     the same with the host's log, and how the run ended
#
# The run's parts are in memory. The file is written anew after each step, so that a machine that goes
# down leaves what was found until then.
set -uo pipefail
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Lines of the kernel's log that a reader needs; a trace's "Hardware name" is left out.
log_of_run() {
    dmesg >"$run/all"
    if grep -qF "$(cat "$run/mark")" "$run/all"; then
        sed "0,/$(cat "$run/mark")/d" "$run/all"
    else
        echo "(the log's beginning was overwritten; what follows is all that was left)"
        cat "$run/all"
    fi | awk '
        /WARNING|BUG|Oops|KASAN|Call Trace|INFO: |lockup|vmwrite error|vmread error|general protection|cut here/ { trace = 60 }
        /Hardware name/ { next }
        trace > 0 || /kvm|bifold|svm|vmx/ { if (++lines <= 1500) print }
        /---\[ end trace/ { trace = 0 }
        { trace-- }
        END { if (lines > 1500) print "(and " lines - 1500 " more lines)"; if (!lines) print "(nothing)" }'
}

# Escapes a word for sed.
literal() { printf '%s' "$1" | sed 's/[][\\.*^$/(){}+?|]/\\&/g'; }

# Takes names, serial numbers and addresses out.
scrub() {
    local file word words=()
    word=$(uname -n)
    case $word in '' | localhost | '(none)' | debian | ubuntu) ;; *) words+=("s/\\b$(literal "$word")\\b/HOST/g") ;; esac
    for file in /sys/class/dmi/id/{product_serial,product_uuid,board_serial,chassis_serial,product_asset_tag,board_asset_tag,chassis_asset_tag} /etc/machine-id; do
        { read -r word <"$file"; } 2>/dev/null || continue
        # Firmware fills empty fields with short words and with sentences.
        case $word in '' | *' '* | ? | ?? | ??? | ????) ;; *) words+=("s/$(literal "$word")/SERIAL/g") ;; esac
    done
    while IFS= read -r word; do words+=("s/(^|[^[:alnum:]])$(literal "$word")([^[:alnum:]-]|$)/\\1DIR\\2/g"); done <"$run/private"
    sed -E "$(printf '%s\n' "${words[@]}" \
        's/\b([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}\b/ADDRESS/g' \
        's/\b([0-9]{1,3}\.){3}[0-9]{1,3}\b/ADDRESS/g' \
        's/\b([0-9a-fA-F]{1,4}:){3,}[0-9a-fA-F:]*/ADDRESS/g' \
        's/\b[0-9a-fA-F]{0,4}::([0-9a-fA-F]{1,4}:?)+/ADDRESS/g')"
}

fenced() { printf '```text\n'; cat "$@"; printf '```\n'; }

# parts: the file's text.
parts() {
    local p=$run/report
    local ended=$p/ended
    echo '# A run of kernel/vmtest-host'
    echo
    if [ -e "$ended" ]; then sed -n 1,3p "$ended"
    else echo "- ended: no. The machine went down, or all of the run's processes were killed, while: $(cat "$run/step")"
    fi
    cat "$p/facts"
    cat <<'TEXT'

This file has what is above, options and parameters of KVM's modules, how the modules were built, results of the
tests, times of switches, and lines of the kernel's log from the run that are about KVM or errors. The script
takes out the host's name, serial numbers, network addresses and paths. Please read the file before you send it.
TEXT
    printf '\n## Parameters of the modules\n\n'
    fenced "$p/parameters"
    printf '\n## Modules\n\n'
    fenced "$p/build"
    printf '\n## Switch cases\n\n'
    cat "$p/cases"
    printf '\n## Guests\n'
    [ ! -e "$p/guests" ] || cat "$p/guests"
    printf '\n## Times of switches\n\n'
    if [ -e "$p/times" ]; then cat "$p/times"; else echo 'No switch of a guest was made.'; fi
    printf '\n## Log of the host\n\n'
    log_of_run >"$run/log"
    fenced "$run/log"
    printf '\n## Failures\n\n'
    if [ -s "$p/failures" ]; then cat "$p/failures"; else echo 'None.'; fi
}

# After a kill, nobody else says these.
finish() {
    local modules
    if [ -e "$run/failed" ]; then modules="NOT brought back: $(cat "$run/failed")"
    elif [ -e "$run/back" ]; then modules='the distribution'\''s, as before the run'
    else modules='the built ones, until what uses them ends'
    fi
    printf -- '- ended: %s\n- modules afterwards: %s\n- failures: %s\n' "$1" "$modules" \
        "$(cat "$run/report/failures" 2>/dev/null | wc -l)" >"$run/report/ended"
}

main() {
    local out
    run=$1
    [ "$2" != finish ] || finish "$3"
    parts 2>/dev/null | scrub >"$run/report.md"
    out=$(cat "$run/out")
    if cp "$run/report.md" "$out" 2>"$run/unwritten"; then
        # sudo's user is to be able to send the file.
        [ ! -s "$run/owner" ] || chown "$(cat "$run/owner")" "$out" 2>/dev/null
        sync "$out"
        rm -f "$run/unwritten"
    fi
    return 0
}

main "$@"
exit
