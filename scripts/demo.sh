#!/usr/bin/env bash
# The main job on real input: GNU sort, plain and under `overspill run`, outputs compared byte for byte.
# Two inputs of one size: a log that is nearly in order, and the same lines in random order.
# Called by `make demo`, which builds the release first. OVERSPILL names another build's program.
set -euo pipefail
export LC_ALL=C

limit=64M
lines=590000 # of about 475 bytes
megabytes=267
overspill=${OVERSPILL:-${CARGO_TARGET_DIR:-target}/release/overspill}
directory=${TMPDIR:-/var/tmp}
work=$(mktemp -d "$directory/overspill-demo.XXXXXX")

# What runs in the background does not hear of an interrupt, so it is told.
clean_up() {
    trap '' INT TERM HUP
    jobs -p | xargs -r kill 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap clean_up EXIT
trap 'clear_progress; exit 130' INT TERM HUP

fail() {
    clear_progress
    echo "FAILED: $1" >&2
    exit 1
}

# One line that is written again and again, for people only.
on_screen=
progress() {
    [[ -t 2 && $1 != "$on_screen" ]] && printf '\r\033[K%s' "$1" >&2
    on_screen=$1
}
clear_progress() { progress ""; }

# Waits a twentieth of a second without starting a program, which would count against what is measured.
mkfifo "$work/never"
exec 3<>"$work/never"
tick() { read -r -t 0.05 -u 3 || true; }

# The same lines every time: a number, a host, an id and text. Sorting a log whose lines arrive up to ten
# thousand late moves text about, but stays near one place; sorting random numbers visits all of memory.
generate() { # log | random
    awk -v lines="$lines" -v order="$1" 'BEGIN {
        srand(7)
        pad = "the quick brown fox jumps over the lazy dog and runs into the dark wood, or so it hopes; "
        while (length(pad) < 600) pad = pad pad
        for (i = 0; i < lines; i++) {
            number = order == "log" ? i * 1000 + rand() * 10000000 : rand() * lines * 1000
            printf "%012d host%02d {\"id\":%d,\"text\":\"%s\"}\n", number, rand() * 40, i, \
                substr(pad, 1 + int(rand() * 60), 430)
        }
    }'
}

sort_to() { # OUTPUT [COMMAND...]: sorts the input, under COMMAND if there is one
    local output=$1
    shift
    exec "$@" sort -S 1G --parallel=2 -T "$work" -o "$output" "$work/input"
}

memory_of() { # PID FIELD: sets `kib` to a field of /proc/PID/status, nothing if the process has ended
    local status line
    kib=
    mapfile -t status 2>/dev/null <"/proc/$1/status" || return 0
    for line in "${status[@]}"; do
        if [[ $line =~ ^$2:[^0-9]*([0-9]+) ]]; then
            kib=${BASH_REMATCH[1]}
            return 0
        fi
    done
}

# Runs the rest of the words; sets `seconds`, and `peak_kib`, its largest resident size.
measure() { # WHAT COMMAND...
    local what=$1 started=$EPOCHREALTIME began=$SECONDS pid shown children
    shift
    "$@" &
    pid=$!
    peak_kib=0
    while memory_of "$pid" VmHWM; [[ -n $kib ]]; do
        peak_kib=$kib
        # `overspill run` starts the program as its child; that is the one to show.
        children=
        read -r children 2>/dev/null <"/proc/$pid/task/$pid/children" || true
        shown=${children%% *}
        memory_of "${shown:-$pid}" VmRSS
        progress "$what: $((SECONDS - began)) s, $((${kib:-0} / 1024)) MiB resident"
        tick
    done
    wait "$pid" || fail "$what: it ended with status $?."
    seconds=$(awk -v start="$started" -v end="$EPOCHREALTIME" 'BEGIN { printf "%.2f", end - start }')
    clear_progress
}

stat_of() { # NAME: the first number of that name in the statistics
    sed -n "s/^ *\"$1\": \([0-9.]*\),*\$/\1/p" "$work/stats.json" | head -n 1
}

mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }
row() { printf '%-14s %-28s %9s %15s %12s %12s\n' "$@"; }

compare() { # NAME: generates that input, sorts it both ways, adds two rows to the table
    progress "$1: generating"
    generate "$1" >"$work/input"
    measure "$1, plain" sort_to "$work/plain"
    row "$1" plain "$seconds s" "$(mib $((peak_kib * 1024)))" - - >>"$work/table"
    measure "$1, overspill run" sort_to "$work/paged" \
        "$overspill" run --quiet --memory "$limit" --stats "$work/stats.json" --
    row "" "overspill run --memory $limit" "$seconds s" "$(mib "$(stat_of peak_resident_bytes)")" \
        "$(mib $(($(stat_of pages_in) * 4096)))" "$(mib $(($(stat_of pages_out) * 4096)))" >>"$work/table"
    cmp "$work/plain" "$work/paged" || fail "$1: the outputs differ."
    rm "$work/input" "$work/plain" "$work/paged"
}

cat <<END
Sorts $megabytes MiB twice, each plain and in $limit: a log that is nearly in order, then random lines.
Takes two to three minutes on a disk, most of it the random lines in $limit,
and up to 1.5 GB in $directory, which is given back.
END
compare log
compare random

echo
row "sort -S 1G" "" time "peak resident" "from swap" "to swap"
cat "$work/table"
echo
echo "Plain and paged outputs are the same, byte for byte."
