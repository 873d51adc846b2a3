#!/bin/sh
# Has a service of systemd run in a limit from its next start on, by a drop-in of its unit, or prints what would be written:
#   systemd-limit.sh [--print] UNIT MEMORY [OPTION OF overspill run]...
#   systemd-limit.sh redis-server 2G --swap file:/var/tmp:20G
# To undo it: rm /etc/systemd/system/UNIT.service.d/overspill.conf; systemctl daemon-reload; systemctl restart UNIT
set -eu
print=
[ "${1:-}" != --print ] || { print=yes; shift; }
[ $# -ge 2 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
unit=${1%.service}.service memory=$2
shift 2
die() { echo "systemd-limit.sh: $unit $1" >&2; exit 1; }

# What it starts now, but for this drop-in; its last word counts, and lines may go on.
file=overspill.conf
starts=$(systemctl cat "$unit" | sed -n "/^# .*\/$file$/,/^# \//!p" | sed -e ':line' -e '/\\$/{N;s/\\\n */ /;bline' -e '}' |
    # An empty one takes back those before it.
    awk '/^ExecStart=[ \t]*$/ { n = 0; next } sub(/^ExecStart=[ \t]*/, "") { all[++n] = $0 } END { for (k = 1; k <= n; k++) print all[k] }')
[ -n "$starts" ] || die "has no ExecStart"
start=$(printf '%s\n' "$starts" | head -n 1)
[ "$start" = "$starts" ] || die "has several ExecStart"
[ "$(systemctl show -p Type --value "$unit")" != forking ] ||
    die "puts itself into the background: give it the option that keeps it from that, and Type=notify or simple"
# - + ! : before the program are the whole command's.
program=${start#"${start%%[!-+!:@]*}"}
marks=${start%"$program"}
case $marks in *@*) die "names its program otherwise (@ in ExecStart)" ;; esac

drop_in() {
    echo '[Service]'
    echo 'ExecStart='
    # Not by echo, which has ideas about backslashes.
    printf '%s\n' "ExecStart=$marks/usr/bin/overspill run --quiet --memory $memory${*:+ $*} -- $program"
    # What it has to say comes from the program, which is not the first process any more.
    echo 'NotifyAccess=all'
    # How a program that SIGTERM ended has ended, as its shell would say it.
    echo 'SuccessExitStatus=143'
    # What a hardened unit forbids and a run needs: docs/guide/hardening.md.
    echo 'MemoryDenyWriteExecute=no'
    [ -z "$(systemctl show -p ExecPaths --value "$unit")" ] || echo 'ExecPaths=/usr/bin/overspill /usr/lib/overspill'
    if [ -n "$(systemctl show -p SystemCallFilter --value "$unit")" ]; then
        echo 'SystemCallFilter=@debug userfaultfd seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self capset'
        echo 'SystemCallErrorNumber=EPERM'
    fi
}

if [ -n "$print" ]; then
    drop_in "$@"
    exit
fi
directory=/etc/systemd/system/$unit.d
mkdir -p "$directory"
drop_in "$@" >"$directory/$file.new"
mv "$directory/$file.new" "$directory/$file"
systemctl daemon-reload
echo "$directory/$file: at its next start (systemctl restart $unit) it runs in $memory"
