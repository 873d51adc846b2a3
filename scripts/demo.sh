#!/usr/bin/env bash
# A program in a third of the memory that it takes: without Overspill, with it, and with room enough; then the worst case.
# Called by `make demo`, which builds the program first. OVERSPILL names another build's program.
set -euo pipefail
export LC_ALL=C

limit=96M
roomy=1G
sorted_limit=16M
sorted_lines=130000 # of about 475 bytes
overspill=${OVERSPILL:-${CARGO_TARGET_DIR:-target}/quick/overspill}
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

mib() { awk -v bytes="$1" 'BEGIN { printf "%.0f MiB", bytes / 1048576 }'; }
row() { printf '  %-34s %8s %14s %11s %11s %11s\n' "$@"; }

# Runs the rest of the words, whose output goes to a file; adds a row to the table.
plain() { # OUTPUT COMMAND...
    measure plain "${@:2}" >"$work/$1"
    row plain "$seconds s" "$(mib $((peak_kib * 1024)))" - - -
}

paged() { # MEMORY OUTPUT COMMAND...
    measure "overspill run --memory $1" "$overspill" run --quiet --memory "$1" --stats "$work/stats.json" -- "${@:3}" >"$work/$2"
    row "overspill run --memory $1" "$seconds s" "$(mib "$(stat_of peak_resident_bytes)")" \
        "$(printf '%.2f s' "$(stat_of stall_some_seconds)")" \
        "$(mib $(($(stat_of pages_out) * 4096)))" "$(mib $(($(stat_of pages_in) * 4096)))"
}

same() { # OUTPUT OUTPUT
    cmp "$work/$1" "$work/$2" || fail "the outputs differ."
}

# What it says when its memory ends, in an address space of that size.
refused() { # COMMAND...
    (
        ulimit -v $((${limit%M} * 1024))
        "$@" 2>&1 >/dev/null | tail -n 1
    ) || true
}

command -v python3 >/dev/null || { echo "make demo runs a program in Python: install python3" >&2; exit 1; }
# Not a script that looks for it.
records=("$(python3 -c 'import sys; print(sys.executable)')" scripts/records.py)

echo "A program that keeps 600 000 records in memory, python3 scripts/records.py:"
echo
row "" time "most memory" waited "to swap" "from swap"
plain records.plain "${records[@]}"
row "in $limit (ulimit -v), plain" "$(refused "${records[@]}")" "" "" "" ""
paged $limit records.paged "${records[@]}"
paged $roomy records.roomy "${records[@]}"
same records.plain records.paged
same records.plain records.roomy

# Random numbers before text: sorting them visits all of memory, again and again.
awk -v lines=$sorted_lines 'BEGIN {
    srand(7)
    pad = "the quick brown fox jumps over the lazy dog and runs into the dark wood, or so it hopes; "
    while (length(pad) < 600) pad = pad pad
    for (i = 0; i < lines; i++)
        printf "%012d %d %s\n", rand() * lines * 1000, i, substr(pad, 1 + int(rand() * 60), 440)
}' >"$work/lines"
echo
echo "The worst case: GNU sort of $sorted_lines lines in random order, whose every touch is of another page:"
echo
sort=(sort -S 1G --parallel=2 -T "$work" "$work/lines")
plain lines.plain "${sort[@]}"
paged $sorted_limit lines.paged "${sort[@]}"
same lines.plain lines.paged

cat <<END

The outputs of each program are the same, byte for byte. Its swap was a file in $directory, which is gone.
"waited" is time in which the program stood still for a page. In order, pages are read from the disk many at
a time and before they are needed; at random, each is waited for alone: that is the price of too little memory.
END
