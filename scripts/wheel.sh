#!/bin/sh
# Builds the wheel of crates/python, with the program and what belongs to it inside: wheel.sh [MATURIN'S OPTIONS]. Into $OUT,
# target/wheels if that is not set, which is emptied first. Takes the program of $RELEASE, target/release if that is not set, and
# maturin: from PATH, or by pip into target/wheel-tools.
set -eu
cd "$(dirname "$0")/.."
release=${RELEASE:-target/release}
bin=crates/python/python/overspill/bin
[ -x "$release/overspill" ] || { echo "there is no $release/overspill: make build" >&2; exit 1; }
maturin=$(command -v maturin || true)
if [ -z "$maturin" ]; then
    tools=target/wheel-tools
    [ -x $tools/bin/maturin ] || { python3 -m venv $tools && $tools/bin/pip install -q 'maturin>=1.8,<2'; }
    maturin=$tools/bin/maturin
fi
[ -n "${OUT:-}" ] || rm -rf target/wheels
rm -rf $bin
mkdir -p $bin
trap 'rm -rf $bin' EXIT
install -m 755 "$release/overspill" "$release/overspill-server" "$release/overspill-forks" $bin
# Of another machine's programs it knows nothing, and those have been built without.
strip --strip-debug $bin/* 2>/dev/null || true
"$maturin" build --release --locked --quiet --manifest-path crates/python/Cargo.toml --out "${OUT:-target/wheels}" "$@"
ls "${OUT:-target/wheels}"/*.whl
