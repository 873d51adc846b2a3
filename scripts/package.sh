#!/bin/sh
# Makes what a release consists of, in target/package: a Debian package, an archive for other systems, the lists of what both
# are built from (SBOM), and checksums. The same commit gives the same bytes, by the same toolchain. Takes cargo-deb and
# cargo-cyclonedx.
set -eu
cd "$(dirname "$0")/.."
out=$PWD/target/package
# Of its own: the flags below are not those of `make build`.
export CARGO_TARGET_DIR="$PWD/target/package-build"
release=$CARGO_TARGET_DIR/release
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# No path of this machine in what is built, nor in what is stripped: the build id is made of that too.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
RUSTFLAGS="--remap-path-prefix=$PWD=overspill --remap-path-prefix=$cargo_home=cargo ${RUSTFLAGS:-}"
CFLAGS="-ffile-prefix-map=$PWD=overspill -ffile-prefix-map=$cargo_home=cargo ${CFLAGS:-}"
CXXFLAGS="-ffile-prefix-map=$PWD=overspill -ffile-prefix-map=$cargo_home=cargo ${CXXFLAGS:-}"
export RUSTFLAGS CFLAGS CXXFLAGS

for tool in cargo-deb cargo-cyclonedx; do
    command -v $tool >/dev/null || { echo "there is no $tool, which makes a part of the packages: cargo install --locked $tool" >&2; exit 1; }
done
command -v strip >/dev/null || { echo "there is no strip: apt-get install binutils" >&2; exit 1; }

rm -rf "$out"
mkdir -p "$out"
cargo build --release --locked -p overspill-cli -p overspill-forks -p overspill-remote -p overspill-c
strip --strip-debug "$release/overspill" "$release/overspill-forks" "$release/overspill-server" "$release"/liboverspill*.so "$release/liboverspill.a"
version=$("$release/overspill" --version | cut -d ' ' -f 2)
name=overspill-$version-$(uname -m)-linux-gnu
# Where cargo-deb takes files from, too.
tree=$out/tree
RELEASE=$release scripts/install.sh "$tree"
cargo deb --no-build --locked -q -p overspill-cli -o "$out/"

mkdir -p "$tree/share/doc/overspill" "$tree/share/overspill"
cp -r packaging "$tree/share/overspill/"
cp -r README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE docs "$tree/share/doc/overspill/"
mv "$tree" "$out/$name"
tar -C "$out" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go-w -cf - "$name" |
    gzip -9n >"$out/$name.tar.gz"
rm -r "${out:?}/$name"

for part in cli forks remote c python; do
    cargo cyclonedx -q --format json --override-filename sbom --manifest-path crates/$part/Cargo.toml
    sed "s|path+file://$PWD/|path+file:///overspill/|g" crates/$part/sbom.json >"$out/overspill-$part-$version.cdx.json"
done
find crates lab tests -name sbom.json -delete
(cd "$out" && sha256sum -- * >SHA256SUMS)
ls -l "$out"
