#!/usr/bin/env bash
# Runs small programs of tests/programs, sort, attachments, and all kinds of users, on Debian's kernels (kernels.sh says what that
# needs): in all ways that there are and in Docker's default profile, or those of `faults calls touches docker` that are named.
# Takes `make program`, or PROFILE=release;
# and go, and a C compiler that knows -m32.
set -euo pipefail
cd "$(dirname "$0")/.."
built=${CARGO_TARGET_DIR:-target}/${PROFILE:-quick}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for source in keeper attach rights; do
    cc -std=gnu11 -O1 -pthread -o "$work/$source" "tests/programs/$source.c" -ldl
done
cc -std=gnu11 -O1 -pthread -static -o "$work/static" tests/programs/keeper.c
cc -m32 -nostdlib -static -o "$work/word32" tests/programs/word32.c
CGO_ENABLED=0 GOCACHE=$work/cache GOFLAGS=-mod=mod go build -o "$work/tree" tests/programs/tree.go
container=tests/programs/container
cc -O1 -o "$work/under_filter" $container/under_filter.c
python3 $container/docker_seccomp.py --write "$work/docker.bpf" $container/default.json ||
    { echo "skipped: Docker's profile: it takes python3 and libseccomp"; touch "$work/docker.bpf"; }
files=("$built"/{overspill,overspill-forks} "$work"/{keeper,attach,rights,static,word32,tree,under_filter,docker.bpf} tests/programs/rights.sh
    tests/programs/small.sh docs/limits.md "$(command -v sort)" "$(command -v setpriv)" "$(command -v setcap)" "$(command -v unshare)")
PATIENCE_SECONDS=${PATIENCE_SECONDS:-3600} scripts/kernels.sh "${files[@]}" -- sh /programs/small.sh "$@"
grep -h '' "${CARGO_TARGET_DIR:-target}"/kernels/output-*
