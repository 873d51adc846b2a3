#!/bin/sh
# Builds the wheel of crates/python into target/wheels, with the program and what belongs to it inside. Takes a release build,
# and maturin: from PATH, or by pip into target/wheel-tools.
set -eu
cd "$(dirname "$0")/.."
bin=crates/python/python/overspill/bin
[ -x target/release/overspill ] || { echo "there is no target/release/overspill: make build" >&2; exit 1; }
maturin=$(command -v maturin || true)
if [ -z "$maturin" ]; then
    tools=target/wheel-tools
    [ -x $tools/bin/maturin ] || { python3 -m venv $tools && $tools/bin/pip install -q 'maturin>=1.8,<2'; }
    maturin=$tools/bin/maturin
fi
rm -rf $bin target/wheels
mkdir -p $bin
trap 'rm -rf $bin' EXIT
install -m 755 target/release/overspill target/release/overspill-server target/release/overspill-forks $bin
strip --strip-debug $bin/*
"$maturin" build --release --locked --quiet --manifest-path crates/python/Cargo.toml --out target/wheels
ls target/wheels/*.whl
