#!/usr/bin/env bash
# Installs the Debian packages that the tests run programs from. Called by `make test`.
#
# Never fails: where a package cannot be installed it says why, and the tests that need it are skipped
# with a reason of their own.
set -euo pipefail

packages=(
    busybox-static    # a system with nothing else
    build-essential   # cc, and libc's headers and static libraries
    chromium-driver   # a browser, for the pages about runs
    coreutils         # sort
    gdb
    libcap2-bin       # setcap
    e2fsprogs         # mkfs.ext4, for full disks and disks with content
    nbdkit
    nbd-server
    openssl           # certificates
    python3
    python3-numpy
    qemu-utils        # qemu-nbd
    redis-server
    sqlite3
    stress-ng
    time
    util-linux        # mkswap, losetup, mount
)

go_on_without() {
    echo "packages: $1; tests that need ${missing[*]} are skipped" >&2
    exit 0
}

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
    echo "packages: all installed"
    exit 0
fi

command -v apt-get >/dev/null || go_on_without "this is no Debian (there is no apt-get)"
((EUID == 0)) || go_on_without "only root can install packages"

# Installing redis-server would start it as a service. This file forbids that; one that is there
# already belongs to whoever runs this machine.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -q || go_on_without "apt-get update failed"
apt-get install -q -y --no-install-recommends "${missing[@]}" || go_on_without "apt-get install failed"
echo "packages: installed ${missing[*]}"
