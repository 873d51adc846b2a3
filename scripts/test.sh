#!/usr/bin/env bash
# Runs parts of the tests one after the other, and says how long each took, and which tests took longest.
#   test.sh PART...          each a target of the Makefile
#   test.sh ... A,B+C,D ...  A and then B, and beside them C and then D: for parts that mostly wait
# Ends at the first part that fails. What a part prints is kept in target/test.
set -euo pipefail
cd "$(dirname "$0")/.."
logs=${CARGO_TARGET_DIR:-target}/test
# Of a part. Longer than any takes on a slow machine: what hangs fails.
patience=30m
rm -rf "$logs"
mkdir -p "$logs"
triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${triple}_RUNNER=$PWD/scripts/timed.sh"

seconds_since() { awk -v start="$1" -v end="$EPOCHREALTIME" 'BEGIN { printf "%.0f", end - start }'; }

summary() {
    echo
    echo "Seconds of each part:"
    cat "$logs/parts" 2>/dev/null || true
    echo "The ten slowest tests:"
    # Other output may stand between a test's name and its time.
    sed -n 's/.*test \([a-z0-9_:]*\) .*<\([0-9.]*\)s>$/\2 \1/p' "$logs"/*.log | sort -rn |
        awk 'NR <= 10 { printf "%8.1f  %s\n", $1, $2 }'
    echo "$(seconds_since "$begun") seconds in all."
    for name in $(cat "$logs/failed" 2>/dev/null || true); do
        echo "Why make $name failed, shortly:"
        # Of each panic the first lines, which say what was expected of what.
        awk '/panicked at/ { lines = 90 } /^stack backtrace/ { lines = 0 } lines-- > 0 { print substr($0, 1, 700) }' \
            "$logs/$name.log" | tail -n 200
    done
}

# Prints nothing until it has ended, if it is `aside`.
part() { # NAME [aside]
    local started=$EPOCHREALTIME status=0
    if [[ ${2:-} == aside ]]; then
        timeout $patience make --no-print-directory "$1" >"$logs/$1.log" 2>&1 || status=$?
        echo "== make $1"
        cat "$logs/$1.log"
    else
        echo "== make $1"
        timeout --foreground $patience make --no-print-directory "$1" 2>&1 | tee "$logs/$1.log" || status=$?
    fi
    printf '%8s  %s\n' "$(seconds_since "$started")" "$1" >>"$logs/parts"
    ((status != 124)) || echo "it did not end within $patience"
    ((status == 0)) || { echo "FAILED: make $1" && echo "$1" >>"$logs/failed"; }
    return "$status"
}

lane() { # A,B,...
    local name
    for name in ${1//,/ }; do part "$name" aside || return; done
}

begun=$EPOCHREALTIME
trap summary EXIT
for group in "$@"; do
    if [[ $group == *+* ]]; then
        lane "${group#*+}" &
        lane "${group%%+*}" || { wait; exit 1; }
        wait $!
    else
        part "$group"
    fi
done
echo "everything passed"
