#!/usr/bin/env bash
# Runs parts of the tests one after the other, and says how long each took, and which tests took longest.
#   test.sh PART...      each a target of the Makefile
# Ends at the first part that fails. What a part prints is kept in target/test.
set -euo pipefail
cd "$(dirname "$0")/.."
logs=${CARGO_TARGET_DIR:-target}/test
rm -rf "$logs"
mkdir -p "$logs"
triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${triple}_RUNNER=$PWD/scripts/timed.sh"

seconds_since() { awk -v start="$1" -v end="$EPOCHREALTIME" 'BEGIN { printf "%.0f", end - start }'; }

summary() {
    echo
    echo "Seconds of each part:"
    cat "$logs/parts"
    echo "The ten slowest tests:"
    # Other output may stand between a test's name and its time.
    sed -n 's/.*test \([a-z0-9_:]*\) .*<\([0-9.]*\)s>$/\2 \1/p' "$logs"/*.log | sort -rn | head -n 10 |
        awk '{ printf "%8.1f  %s\n", $1, $2 }'
    echo "$(seconds_since "$begun") seconds in all."
}

begun=$EPOCHREALTIME
trap summary EXIT
for part in "$@"; do
    started=$EPOCHREALTIME
    echo "== make $part"
    status=0
    make --no-print-directory "$part" 2>&1 | tee "$logs/$part.log" || status=$?
    printf '%8s  %s\n' "$(seconds_since "$started")" "$part" >>"$logs/parts"
    if ((status != 0)); then
        echo "FAILED: make $part"
        exit "$status"
    fi
done
echo "everything passed"
