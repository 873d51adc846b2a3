#!/bin/sh
# Puts the release build where programs, compilers and man look: install.sh [PREFIX], /usr/local if none is given.
# $DESTDIR stands before it for packages. $RELEASE is where the programs are, $LIBRARY where the library for C is, if elsewhere, and
# $PROGRAM the program to be asked for its manual pages, if those are for another machine.
set -eu
prefix=${1:-/usr/local}
cd "$(dirname "$0")/.."
release=${RELEASE:-target/release}
library=${LIBRARY:-$release}
program=${PROGRAM:-$release/overspill}
root=${DESTDIR:-}$prefix
[ -x "$release/overspill" ] || { echo "there is no $release/overspill: make build" >&2; exit 1; }
version=$("$program" --version | cut -d ' ' -f 2)

# Without what debuggers know, five sixths of their size; where there is no strip, with it.
strip=$(command -v strip || echo true)
install -D -m 755 "$release/overspill" -t "$root/bin"
install -D -m 755 "$release/overspill-server" "$release/overspill-forks" -t "$root/lib/overspill"

install -D -m 755 "$library/liboverspill.so" "$root/lib/liboverspill.so.$version"
ln -sf "liboverspill.so.$version" "$root/lib/liboverspill.so.0"
ln -sf liboverspill.so.0 "$root/lib/liboverspill.so"
install -D -m 644 "$library/liboverspill.a" -t "$root/lib"
for file in "$root/bin/overspill" "$root"/lib/overspill/* "$root/lib/liboverspill.so.$version" "$root/lib/liboverspill.a"; do
    # Of another machine's it knows nothing.
    $strip --strip-debug "$file" 2>/dev/null || true
done
install -D -m 644 crates/c/include/overspill.h -t "$root/include"
mkdir -p "$root/lib/pkgconfig"
sed "s|@VERSION@|$version|" packaging/overspill.pc >"$root/lib/pkgconfig/overspill.pc"

mkdir -p "$root/share/man/man1" "$root/share/bash-completion/completions" "$root/share/zsh/site-functions" \
    "$root/share/fish/vendor_completions.d"
"$program" man "$root/share/man/man1"
"$program" completions bash >"$root/share/bash-completion/completions/overspill"
"$program" completions zsh >"$root/share/zsh/site-functions/_overspill"
"$program" completions fish >"$root/share/fish/vendor_completions.d/overspill.fish"

# What links to the library finds it, where the loader looks. Of a package its own tools do that.
case ${DESTDIR:-}$prefix in
/usr | /usr/local) [ "$(id -u)" != 0 ] || ldconfig ;;
esac
