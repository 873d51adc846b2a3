#!/bin/sh
# Puts each known bug of this directory into a copy of the tree and runs the test that must find it.
# Fails if one is not found, does not apply or does not build. `run.sh NAME...` tries only those.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
work=$root/target/mutants
tree=$work/tree
export CARGO_TARGET_DIR="$work/build"
log=$work/log
bad=0

rm -rf "$tree"
mkdir -p "$tree"
# With times of their own: a file whose old time came back would leave cargo with a mutant's build.
(cd "$root" && tar -c --exclude=./target --exclude=./.git .) | tar -x -m -C "$tree" --overwrite
cd "$tree" || exit 1

field() { sed -n "s/^$1: //p" "$2" | head -n 1; }
row() { printf '%-36s %-10s %5ss  %s\n' "$1" "$2" "$3" "$4"; }
# Runs a test command as it is, or only builds it.
run() { timeout 300 sh -c "$1" >"$log" 2>&1; }
# A mutant may make a test hang.
dies() { ! timeout 90 sh -c "$1" >"$log" 2>&1; }
# Programs that were built here and have outlived their test: a keeper ignores what ends others.
end_left() {
    for process in /proc/[0-9]*; do
        case $(readlink "$process/exe") in "$work"/*) kill -KILL "${process#/proc/}" 2>/dev/null ;; esac
    done
}
# Test options follow the first word that is not cargo's, a filter: it does not matter for building.
builds() { run "$1 --no-run"; }

patches=$(for name in "${@:-*}"; do ls "$root"/tests/mutants/$name.patch; done) || exit 1

# A test that fails anyway proves nothing.
for patch in $patches; do field Test "$patch"; done | sort -u >"$work/tests"
while read -r test <&3; do
    if ! run "$test" || ! grep -q '^test result: ok\. [1-9]' "$log"; then
        echo "fails without any mutant, or tests nothing: $test"
        tail -n 40 "$log"
        exit 1
    fi
done 3<"$work/tests"

for patch in $patches; do
    name=$(basename "$patch" .patch)
    test=$(field Test "$patch")
    start=$(date +%s)
    if ! patch -p1 -s -f --no-backup-if-mismatch <"$patch" >"$log" 2>&1; then
        bad=$((bad + 1))
        row "$name" "NO PATCH" 0 ""
        continue
    fi
    if ! builds "$test"; then
        verdict="NO BUILD"
        bad=$((bad + 1))
    elif dies "$test"; then
        verdict=killed
    else
        verdict=SURVIVED
        bad=$((bad + 1))
    fi
    end_left
    [ "$verdict" = killed ] || tail -n 20 "$log"
    [ "$verdict" = killed ] && unseen=hangs || unseen=
    by=$(grep -E '^(---- | *test .* FAILED)|panicked at' "$log" | head -n 1 | sed 's/^---- //; s/ stdout ----//' | cut -c1-70)
    row "$name" "$verdict" "$(($(date +%s) - start))" "${by:-$unseen}"
    patch -p1 -s -R --no-backup-if-mismatch <"$patch" || exit 1
done

[ "$bad" = 0 ] && echo "every mutant was killed" || echo "$bad mutants were not killed"
[ "$bad" = 0 ]
