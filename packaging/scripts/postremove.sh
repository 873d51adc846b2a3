#!/bin/sh
# The device is again as the kernel makes it. The group stays, as Debian's packages leave theirs: files may have its number.
# Called by dpkg (remove, upgrade, purge, ...), rpm (how many versions stay) and apk (a version).
set -e
device=/dev/userfaultfd
case ${1:-} in remove | 0 | *.*) ;; *) exit 0 ;; esac
udevadm control --reload 2>/dev/null || true
# What the administrator's own rules give stays.
if [ "$(stat -c %G $device 2>/dev/null)" = overspill ] && ! grep -qs userfaultfd /etc/udev/rules.d/*; then
    { chgrp root $device && chmod 600 $device; } || true
fi
