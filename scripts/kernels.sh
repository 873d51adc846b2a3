#!/usr/bin/env bash
# Boots Debian's kernels in emulated x86-64 machines and runs something there.
#   kernels.sh                        the rules of tests/kernel-rules, and a table of them
#   kernels.sh FILE... -- COMMAND...  COMMAND (for a shell), with FILEs in /programs; fails if it fails on one
# KERNELS are the first two numbers of versions; each stands for the newest that Debian has. Of a FILE the libraries
# that ldd names come along; busybox is there, /proc, /sys, /dev and an empty /tmp, and 2 GiB of memory. /programs is in
# PATH, but what busybox has too is busybox's, unless it is called by its path. COMMAND runs as root, in /tmp. What it
# prints is in target/kernels/output-VERSION. Emulated, since nested KVM is not to be had everywhere: all is 20 times
# slower, and as right or wrong as elsewhere.
# Needs Debian's qemu-system-x86, cpio and busybox-static, and apt with a Debian mirror. Kernels are kept in
# target/kernels/vmlinuz until that is removed.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${KERNELS:=6.1 6.12 6.18 7.3}"
mkdir -p "${CARGO_TARGET_DIR:=target}/kernels"
work=$(cd "$CARGO_TARGET_DIR/kernels" && pwd)
for tool in qemu-system-x86_64 cpio busybox; do
    command -v "$tool" >/dev/null || { echo "there is no $tool: apt-get install qemu-system-x86 cpio busybox-static" >&2; exit 1; }
done
# Of one kernel's run. The rules take a minute or two.
patience=${PATIENCE_SECONDS:-1800}

# apt with a state of its own, so that the machine's packages stay as they are.
of_debian() {
    local tool=$1 apt=$work/apt
    shift
    "$tool" -o "Dir::State=$apt" -o "Dir::State::Lists=$apt/lists" -o "Dir::State::Status=$apt/status" -o "Dir::Cache=$apt/cache" \
        -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o APT::Architecture=amd64 \
        -o APT::Architectures=amd64 -o APT::Sandbox::User=root "$@"
}

update() {
    local mirror suite of
    mirror=$(apt-cache policy | sed -n 's|.* \(http[^ ]*/debian\) .*|\1|p' | head -n 1)
    [[ -n $mirror ]] || { echo "there is no Debian mirror in apt's sources" >&2; exit 1; }
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    for suite in bookworm bookworm-backports bookworm-security trixie trixie-backports trixie-security sid; do
        # Security suites are in an archive of their own.
        of=$mirror
        [[ $suite != *-security ]] || of=$mirror-security
        echo "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $of $suite main"
    done >"$work/apt/sources.list"
    : >"$work/apt/status"
    of_debian apt-get update -qq
}

# The newest package with a kernel of a version. Newer ones have it apart from what depends on it.
package_of() { # VERSION
    local names newest
    names=$(of_debian apt-cache pkgnames | grep -E "^linux-(binary|image)-${1/./\\.}\.[0-9.]+(-[0-9]+)?(\+deb[0-9.]+)?-amd64$") ||
        { echo "Debian has no kernel $1" >&2; exit 1; }
    newest=$(sed 's/^linux-[a-z]*-//' <<<"$names" | sort -V | tail -n 1)
    grep -x "linux-binary-$newest" <<<"$names" || echo "linux-image-$newest"
}

# Keeps the file that boots: in /boot, and of newer kernels beside their modules.
get_kernel() { # VERSION
    local package debs=$work/debs
    [[ ! -s $work/vmlinuz/$1 ]] || return 0
    [[ -n ${updated:-} ]] || { update; updated=1; }
    package=$(package_of "$1")
    mkdir -p "$work/vmlinuz" "$debs"
    (cd "$debs" && of_debian apt-get download -qq "$package")
    dpkg-deb --fsys-tarfile "$debs/$package"_*.deb | tar -xO --wildcards '*/vmlinuz*' >"$work/vmlinuz/$1.part"
    mv "$work/vmlinuz/$1.part" "$work/vmlinuz/$1"
    rm -r "$debs"
}

make_initrd() { # COMMAND FILE...
    local root=$work/root command=$1 file library
    shift
    rm -rf "$root"
    mkdir -p "$root"/{bin,dev,proc,sys,tmp,programs}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for file in "$@"; do
        strip -o "$root/programs/$(basename "$file")" "$file" 2>/dev/null || cp "$file" "$root/programs/"
        for library in $(ldd "$file" 2>/dev/null | grep -o '/[^ ]*' || true); do
            mkdir -p "$root$(dirname "$library")"
            cp -L "$library" "$root$library"
        done
    done
    printf '%s\n' "$command" >"$root/command"
    cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t tmpfs tmp /tmp
/bin/busybox --install -s /bin
export PATH=/programs:/bin HOME=/tmp LC_ALL=C
ifconfig lo 127.0.0.1
stty -F /dev/ttyS1 raw
exec >/dev/ttyS1 2>&1 </dev/null
echo "kernel $(uname -r)"
cd /tmp
sh /command
echo "status $?"
sync
echo o >/proc/sysrq-trigger
sleep 60
INIT
    chmod +x "$root/init"
    (cd "$root" && find . | cpio --quiet -o -H newc) | gzip -1 >"$work/initrd"
}

# The kernel's own words go to console-VERSION, those of the command to output-VERSION.
boot() { # VERSION
    local output=$work/output-$1
    rm -f "$output"
    timeout "$patience" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 2G -display none -no-reboot -nic none \
        -monitor none -serial "file:$work/console-$1" -serial "file:$output" -kernel "$work/vmlinuz/$1" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off rdinit=/init" </dev/null || true
    grep -qs '^status 0$' "$output"
}

# Returns in `failed` the kernels on which the command failed. (No status: a function whose status is asked for goes
# on after errors.)
run_on_each() {
    local version
    failed=
    for version in $KERNELS; do
        echo "== $version" >&2
        boot "$version" || failed+=" $version"
    done
    for version in $failed; do echo "FAILED on $version: see $work/output-$version" >&2; done
}

# The test program of the rules.
rules_program() {
    ${CARGO:-cargo} test -q -p overspill-kernel-rules --test rules --no-run --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\/rules-[^"]*\)".*/\1/p' | tail -n 1
}

outputs() { for version in $KERNELS; do echo "$work/output-$version"; done; }

for version in $KERNELS; do get_kernel "$version"; done
if (($# == 0)); then
    program=$(rules_program)
    make_initrd "$(basename "$program") --show-output" "$program"
    run_on_each
    # shellcheck disable=SC2046
    scripts/kernel-table.py $(outputs) | tee "$work/table.md"
    [[ -z $failed ]]
    exit
fi
files=()
while (($#)) && [[ $1 != -- ]]; do
    files+=("$1")
    shift
done
(($# > 1)) || { sed -n '3,4s/^# *//p' "$0" >&2; exit 2; }
shift
make_initrd "$*" "${files[@]}"
run_on_each
[[ -z $failed ]]
