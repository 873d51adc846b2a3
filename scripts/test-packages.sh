#!/bin/sh
# What scripts/package.sh has made, as new users get it: in a fresh root of each suite of Debian, and in one that has busybox and
# nothing else, an ordinary user installs by one line and does the main job. Packages are installed, used and removed by root.
#
# test-packages.sh [SUITE...]: bookworm, trixie and busybox by default. Roots are made in target/roots, and used again. As root; takes
# debootstrap, busybox-static, and a network for debootstrap and pip.
set -eu
cd "$(dirname "$0")/.."
packages=$PWD/target/package
roots=$PWD/target/roots
[ -e "$packages/SHA256SUMS" ] || { echo "there is nothing in target/package: make package" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "only root can make roots" >&2; exit 1; }

root=
# Its mounts are in a namespace that has ended.
trap '[ -z "$root" ] || rm -rf "$root"' EXIT

# Fills 200 MiB in 64 and checks all of it.
job='n = 200 << 20; data = bytearray(n)
for at in range(0, n, 4096): data[at] = at >> 12 & 255
assert all(data[at] == at >> 12 & 255 for at in range(0, n, 4096)); print("all there")'

# Runs a script in a copy of a root, with a proc and devices of its own, which are gone with it.
within() {
    root=$1
    cp "$packages"/* "$root/packages/"
    # shellcheck disable=SC2016
    unshare --mount --pid --fork sh -euc '
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        exec chroot "$1" "$2" /packages/script' within "$root" "$2"
}

debian() {
    base=$roots/$1
    if [ ! -e "$base" ]; then
        rm -rf "$base.new"
        debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv "$1" "$base.new" >"$roots/$1.log"
        mv "$base.new" "$base"
    fi
    root=$(mktemp -d "$roots/$1.XXXXXX")
    cp -a "$base/." "$root"
    mkdir -p "$root/packages"
    cp -L /etc/resolv.conf "$root/etc/"
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/"
    printf '%s\n' "$job" >"$root/packages/job.py"
    cat >"$root/packages/script" <<'END'
set -eu
export DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
. /etc/os-release
echo "== $PRETTY_NAME"
useradd -m ann
# How long a line takes, and what it says.
line() {
    echo "\$ $2"
    begun=$(date +%s%N)
    case $1 in
    ann) setpriv --reuid ann --regid ann --init-groups env -i HOME=/home/ann PATH=/home/ann/.local/bin:/usr/bin:/bin sh -euc "cd; $2" ;;
    root) sh -euc "$2" ;;
    esac
    echo "  ($(($(date +%s%N) / 1000000 - begun / 1000000)) ms)"
}
line ann 'mkdir -p .local && tar xzf /packages/overspill-*-linux.tar.gz -C .local --strip-components=1'
line ann 'overspill run --memory 64M -- python3 /packages/job.py'
line ann 'rm -r .local && python3 -m venv new && new/bin/pip install -q /packages/overspill-*manylinux*.whl numpy'
line ann 'new/bin/overspill run --memory 64M -- python3 /packages/job.py'
line ann 'new/bin/python -c "
import numpy, overspill
with overspill.limit(\"16M\") as limit: ones = numpy.ones(8 << 20)
print(ones.sum(), limit.stats()[\"pages_out\"] > 0)"'
apt-get -qq update
line root 'apt-get -qq install /packages/overspill_*.deb >/dev/null 2>&1'
line ann 'overspill run --memory 64M -- python3 /packages/job.py'
test "$(stat -c %G /usr/lib/overspill/overspill-forks)" = overspill
line root 'apt-get -qq install --no-install-recommends gcc libc6-dev pkgconf /packages/liboverspill*.deb >/dev/null 2>&1'
cat >/tmp/ones.c <<'C'
#include <overspill.h>
#include <stdio.h>
#include <string.h>
int main(void) {
    const overspill_options options = { .memory_bytes = 16 << 20 };
    overspill *limit = overspill_new(&options);
    overspill_region *region = limit ? overspill_region_new(limit, 64 << 20, OVERSPILL_BY_MESSAGE) : NULL;
    if (!region) return fprintf(stderr, "%s\n", overspill_error()), 1;
    memset(overspill_region_data(region), 1, 64 << 20);
    return puts("64 MiB in 16") < 0;
}
C
line root 'cd /tmp && cc ones.c $(pkg-config --cflags --libs overspill) -o ones && ./ones'
line root 'apt-get -qq remove overspill liboverspill0 >/dev/null 2>&1; ! command -v overspill'
END
    within "$root" /bin/sh
    rm -rf "$root"
}

bare() {
    root=$(mktemp -d "$roots/busybox.XXXXXX")
    for directory in bin etc proc dev tmp var/tmp packages home/ann; do mkdir -p "$root/$directory"; done
    chmod 755 "$root"
    chmod 1777 "$root/tmp" "$root/var/tmp"
    printf 'root::0:0::/:/bin/sh\nann::1000:1000::/home/ann:/bin/sh\n' >"$root/etc/passwd"
    chown 1000:1000 "$root/home/ann"
    cp "$(command -v busybox)" "$root/bin/busybox"
    chroot "$root" /bin/busybox --install -s /bin
    cat >"$root/packages/script" <<'END'
set -eu
echo "== busybox, and nothing else: $(echo /*)"
line() {
    echo "\$ $1"
    su ann -c "export PATH=/home/ann/.local/bin:/bin; cd; $1"
}
line 'mkdir .local && tar xzf /packages/overspill-*-linux.tar.gz -C .local && mv .local/overspill-*/* .local/'
line 'overspill doctor'
line 'overspill run --memory 16M -- awk "BEGIN { for (i = 0; i < 400000; i++) a[i] = i; for (i in a) s += a[i]; print s }"'
END
    within "$root" /bin/sh
    rm -rf "$root"
}

mkdir -p "$roots"
for suite in ${*:-bookworm trixie busybox}; do
    case $suite in busybox) bare ;; *) debian "$suite" ;; esac
done
