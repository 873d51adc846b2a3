#!/bin/sh
# Compares `overspill run` with kernel swap: the same program, memory limit and kind of device, one
# after the other in each of ROUNDS rounds (default 1); prints medians and their ratio.
#
#   scripts/compare-kernel.sh [ROUNDS]
#
# Needs root: it makes a memory cgroup, a zram device and swap areas, and removes them again.
set -u
cd "$(dirname "$0")/.." || exit 1
rounds=${1:-1} limit_mib=64 set_mib=256 seconds=${SECONDS_EACH:-4}
work=$(mktemp -d) group= zram= loop= swapfile=

cleanup() {
    [ -n "$zram" ] && { swapoff "$zram" 2>/dev/null; echo 1 >"/sys/block/${zram##*/}/reset"; }
    [ -n "$loop" ] && { swapoff "$loop" 2>/dev/null; losetup -d "$loop"; }
    [ -n "$swapfile" ] && { swapoff "$swapfile" 2>/dev/null; rm -f "$swapfile"; }
    mountpoint -q "$work/ram" && umount "$work/ram"
    [ -n "$group" ] && rmdir "$group"
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

say() { printf '%s\n' "$*" >&2; }

make_group() {
    for root in /sys/fs/cgroup /sys/fs/cgroup/unified; do
        if grep -qw memory "$root/cgroup.controllers" 2>/dev/null; then
            group=$root/overspill-compare-$$ limit_file=memory.max
        fi
    done
    [ -n "$group" ] || say "cgroup v2: skipped, its memory controller is not here (v1 has it)"
    if [ -z "$group" ] && [ -d /sys/fs/cgroup/memory ]; then
        group=/sys/fs/cgroup/memory/overspill-compare-$$ limit_file=memory.limit_in_bytes
    fi
    [ -n "$group" ] && mkdir "$group" || { say "no memory cgroup can be made: nothing to compare"; exit 1; }
    [ "$limit_file" = memory.max ] && echo "+memory" >"${group%/*}/cgroup.subtree_control"
    echo $((limit_mib << 20)) >"$group/$limit_file" || exit 1
}

kernel() {
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$work/touch" "$@"
}

paged() {
    spec=$1
    shift
    target/release/overspill run --quiet --memory "${limit_mib}M" $spec -- "$work/touch" "$@"
}

median() { sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

# compare DEVICE SPEC: the kernel's swap on DEVICE is on.
compare() {
    for mode in random read modify; do
        for threads in 1 2; do
            : >"$work/kernel" && : >"$work/paged"
            for _ in $(seq "$rounds"); do
                kernel "$mode" "$threads" "$set_mib" "$seconds" >>"$work/kernel"
                paged "$2" "$mode" "$threads" "$set_mib" "$seconds" >>"$work/paged"
            done
            a=$(median <"$work/kernel") b=$(median <"$work/paged")
            printf '%-22s %-7s %d  %9s %9s  %5s\n' "$1" "$mode" "$threads" "$a" "$b" \
                "$(awk "BEGIN {printf \"%.2f\", $b / $a}")"
        done
    done
}

cc -O2 -pthread -o "$work/touch" scripts/touch.c || exit 1
[ "$(wc -l </proc/swaps)" -eq 1 ] || { say "other swap is on: the comparison would use it"; exit 1; }
make_group
echo "pages per second, ${set_mib} MiB touched in ${limit_mib} MiB, ${seconds} s each, $rounds round(s)"
printf '%-22s %-7s %s  %9s %9s  %5s\n' device access threads kernel overspill ratio

if [ -e /dev/zram0 ] && [ "$(cat /sys/block/zram0/disksize)" = 0 ]; then
    zram=/dev/zram0
    echo lz4 >/sys/block/zram0/comp_algorithm 2>/dev/null
    echo 1G >/sys/block/zram0/disksize
    mkswap "$zram" >/dev/null && swapon "$zram" && compare "zram lz4 / ram:" "--swap ram:1G"
    swapoff "$zram"
else
    say "zram: skipped, there is no unused /dev/zram0"
fi

mkdir "$work/ram" && mount -t tmpfs -o noswap,size=1200m tmpfs "$work/ram" && {
    truncate -s 1G "$work/ram/swap"
    loop=$(losetup -f --show "$work/ram/swap") && mkswap "$loop" >/dev/null 2>&1 && swapon "$loop" &&
        compare "loop on tmpfs / ram:" "--swap ram:1G"
    swapoff "$loop"
} || say "RAM disk: skipped, a tmpfs cannot be mounted here"

swapfile=/var/tmp/overspill-compare-$$
if fallocate -l 1G "$swapfile" && chmod 600 "$swapfile" && mkswap "$swapfile" >/dev/null &&
    swapon "$swapfile"; then
    compare "swap file / file" ""
else
    say "swap file: skipped, it cannot be switched on here"
fi
