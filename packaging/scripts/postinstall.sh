#!/bin/sh
# The group that may open /dev/userfaultfd, and may have forks reported: it has no members until the administrator adds some.
# Called by dpkg (configure, abort-...), rpm (a number) and apk (a version).
set -e
case ${1:-} in abort-*) exit 0 ;; esac
forks=/usr/lib/overspill/overspill-forks
systemd-sysusers overspill.conf 2>/dev/null || groupadd --system overspill 2>/dev/null || addgroup -S overspill 2>/dev/null || true
udevadm control --reload 2>/dev/null || true
udevadm trigger /dev/userfaultfd 2>/dev/null || true
getent group overspill >/dev/null || exit 0
# What the administrator has set stays; the capability goes with every new file.
if [ -z "$(dpkg-statoverride --list $forks 2>/dev/null)" ]; then
    chgrp overspill $forks
    chmod 750 $forks
fi
setcap cap_sys_ptrace=ep $forks 2>/dev/null || true
