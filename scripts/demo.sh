#!/usr/bin/env bash
# The main job on real input: GNU sort, plain and under `overspill run`, compared byte for byte.
# Called by `make demo`, which builds the release first.
set -euo pipefail
export LC_ALL=C

limit=64M
lines=590000 # of about 475 bytes: 267 MiB
overspill=${CARGO_TARGET_DIR:-target}/release/overspill
work=$(mktemp -d "${TMPDIR:-/var/tmp}/overspill-demo.XXXXXX")

# What runs in the background does not hear of an interrupt, so it is told.
clean_up() {
    trap '' INT TERM HUP
    jobs -p | xargs -r kill 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

fail() {
    echo "FAILED: $1" >&2
    exit 1
}

# The same log every time: lines of many hosts with their times, which arrive up to ten thousand lines
# late. Sorting it moves text about without visiting all of memory at random for every line.
generate() {
    awk -v lines="$lines" 'BEGIN {
        srand(7)
        pad = "the quick brown fox jumps over the lazy dog and runs into the dark wood, or so it hopes; "
        while (length(pad) < 600) pad = pad pad
        for (i = 0; i < lines; i++)
            printf "%012d host%02d {\"id\":%d,\"text\":\"%s\"}\n", i * 1000 + rand() * 10000000, \
                rand() * 40, i, substr(pad, 1 + int(rand() * 60), 430)
    }'
}

sort_to() { # OUTPUT [COMMAND...]: sorts the input, under COMMAND if there is one
    local output=$1
    shift
    exec "$@" sort -S 1G --parallel=2 -T "$work" -o "$output" "$work/input"
}

# Runs the rest of the words; sets `seconds` and `peak_kib`, its largest resident size.
measure() {
    local started=$EPOCHREALTIME hwm
    "$@" &
    local pid=$!
    peak_kib=0
    while hwm=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$pid/status" 2>/dev/null); do
        [[ -z $hwm ]] && break
        peak_kib=$hwm
        sleep 0.02
    done
    wait "$pid" || fail "it ended with status $?."
    seconds=$(elapsed "$started" "$EPOCHREALTIME")
}

elapsed() { # START END, in seconds with a fraction
    awk -v start="$1" -v end="$2" 'BEGIN { printf "%.2f", end - start }'
}

stat_of() { # NAME: the first number of that name in the statistics
    sed -n "s/^ *\"$1\": \([0-9.]*\),*\$/\1/p" "$work/stats.json" | head -n 1
}

row() { printf '%-28s %10s %14s %12s %12s\n' "$@"; }
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }

echo "Generating $((lines * 475 / 1048576)) MiB of lines ..."
generate >"$work/input"

echo "Sorting them plain ..."
measure sort_to "$work/plain"
plain_seconds=$seconds
plain_peak=$(mib $((peak_kib * 1024)))

echo "Sorting them in $limit ..."
measure sort_to "$work/paged" \
    "$overspill" run --quiet --memory "$limit" --stats "$work/stats.json" --

echo
row "sort -S 1G --parallel=2" time "peak resident" "pages in" "pages out"
row plain "$plain_seconds s" "$plain_peak" - -
row "overspill run --memory $limit" "$seconds s" "$(mib "$(stat_of peak_resident_bytes)")" \
    "$(stat_of pages_in)" "$(stat_of pages_out)"
echo

cmp "$work/plain" "$work/paged" || fail "the outputs differ."
echo "The outputs are the same, byte for byte."
