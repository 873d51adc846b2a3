#!/bin/sh
# Runs real programs under `overspill run` on an emulated AArch64 machine: Debian's kernel and sort, a static program, one in Go, and what
# CARGO_TARGET_DIR (or target) has for aarch64-unknown-linux-gnu. qemu-user would not do: it has no userfaultfd.
# Needs qemu-system-arm, cpio, gcc-aarch64-linux-gnu, go, and apt with a Debian mirror. `make aarch64-program` builds first.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "${CARGO_TARGET_DIR:=target}"
target=$(cd "$CARGO_TARGET_DIR" && pwd)
built=$target/aarch64-unknown-linux-gnu/release
work=$target/aarch64
root=$work/root
suite=bookworm

mirror=$(apt-cache policy | sed -n 's|.* \(http[^ ]*/debian\) .*|\1|p' | head -n 1)
[ -n "$mirror" ] || { echo "there is no Debian mirror in apt's sources"; exit 1; }
mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/debs"
for of in $suite $suite-backports; do
    echo "deb [arch=arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $of main"
done >"$work/apt/sources.list"
: >"$work/apt/status"
apt=$work/apt
of_arm() {
    tool=$1
    shift
    "$tool" -o "Dir::State=$apt" -o "Dir::State::Lists=$apt/lists" -o "Dir::State::Status=$apt/status" -o "Dir::Cache=$apt/cache" \
        -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o APT::Architecture=arm64 \
        -o APT::Architectures=arm64 -o APT::Sandbox::User=root "$@"
}
of_arm apt-get update -qq
kernel=$(of_arm apt-cache depends "linux-image-arm64/$suite-backports" linux-image-arm64 | sed -n 's/.*Depends: \(linux-image-[6-9].*\)/\1/p' | sort -V | tail -n 1)
(cd "$work/debs" && of_arm apt-get download -qq "$kernel" busybox-static coreutils libc6 libgcc-s1 libacl1 libattr1 libgmp10 libpcre2-8-0 libselinux1)

rm -rf "$root"
mkdir -p "$root/dev" "$root/proc" "$root/sys" "$root/tmp" "$root/var/tmp"
for deb in "$work"/debs/*.deb; do
    case $deb in
    *linux-image*) dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work" --wildcards --strip-components=2 './boot/vmlinuz*' ;;
    *) dpkg-deb -x "$deb" "$root" ;;
    esac
done
mkdir -p "$root/usr/lib/overspill"
aarch64-linux-gnu-strip -o "$root/usr/bin/overspill" "$built/overspill"
aarch64-linux-gnu-gcc -std=gnu11 -O1 -pthread -static -o "$root/usr/bin/keeper" tests/programs/keeper.c
GOARCH=arm64 CGO_ENABLED=0 GOCACHE=$work/cache GOFLAGS=-mod=mod go build -o "$root/usr/bin/tree" tests/programs/tree.go
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
export PATH=/bin:/usr/bin LC_ALL=C
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
busybox uname -srm
overspill doctor
busybox awk 'BEGIN { srand(1); for (n = 0; n < 300000; n++) printf "%08d%08d %d\n", rand() * 1e8, rand() * 1e8, n }' >/tmp/lines
/usr/bin/sort -S 100M --parallel=2 /tmp/lines >/tmp/plain
for swap in ram:200M compressed:200M file:/var/tmp:200M; do
    overspill run --memory 12M --swap $swap --stats /tmp/stats -- sort -S 100M --parallel=2 /tmp/lines >/tmp/paged
    status=$?
    busybox grep -q '"pages_out": *[1-9]' /tmp/stats || continue
    busybox cmp /tmp/plain /tmp/paged && echo "same bytes on $swap, status $status"
done
same() { # NAME PROGRAM...
    name=$1
    shift
    "$@" >/tmp/plain
    overspill run --memory 32M --swap compressed:512M --stats /tmp/stats -- "$@" >/tmp/paged
    status=$?
    busybox grep -q '"pages_out": *[1-9]' /tmp/stats || return
    busybox cmp /tmp/plain /tmp/paged && echo "same bytes by $name, status $status"
}
same "a static program" keeper threads
same "children" keeper children_execute
same "Go" tree
echo o >/proc/sysrq-trigger
busybox sleep 60
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc) | gzip -1 >"$work/initrd"
timeout 1800 qemu-system-aarch64 -M virt -cpu max -smp 2 -m 1500M -nographic -no-reboot -nic none \
    -kernel "$work"/vmlinuz-* -initrd "$work/initrd" -append "quiet loglevel=3 panic=1 rdinit=/init" </dev/null | tee "$work/log"
[ "$(grep -c '^same bytes .*, status 0' "$work/log")" = 6 ] || { echo "not all programs did the same as without Overspill"; exit 1; }
