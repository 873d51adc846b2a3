#!/bin/sh
# Runs a program in 16 MiB of memory, as all kinds of users and in all kinds of processes, and says where it was. Needs root, and
# setpriv, setcap and unshare of Debian.
#   rights.sh prepare DIR BUILT PROGRAM PROGRAM32   copies an installation there, and what is run: rights.c, word32.c
#   rights.sh ROW DIR                               prints "in the limit", "outside" or "refused", and why
# The rows are those of docs/limits.md.
set -eu
# busybox has others of the same names.
: "${SETPRIV:=setpriv}" "${SETCAP:=setcap}" "${UNSHARE:=unshare}"
# How many times slower this machine is than usual.
: "${SLOW:=1}"
user=65534
umask 022

prepare() { # DIR BUILT PROGRAM PROGRAM32
    mkdir -p "$1/package" "$1/bare"
    for to in package bare; do
        cp "$2/overspill" "$1/$to/"
    done
    cp "$2/overspill-forks" "$1/package/"
    chown "0:$user" "$1/package/overspill-forks"
    chmod 750 "$1/package/overspill-forks"
    $SETCAP cap_sys_ptrace=ep "$1/package/overspill-forks"
    cp "$3" "$1/program"
    cp "$3" "$1/set-user-id"
    chmod 4755 "$1/set-user-id"
    [ -z "$4" ] || cp "$4" "$1/program32"
    ln -sf /bin/sh "$1/sh"
}

# What comes after is done as the user.
as_user() { $SETPRIV --reuid $user --regid $user --clear-groups "$@"; }

# The same where the device belongs to the user's group, as a package has it; nothing of the machine is changed.
as_member() {
    DIR=$dir GROUP=$user SETPRIV=$SETPRIV $UNSHARE --mount sh -c '
        set -e
        mkdir -p "$DIR/dev"
        mount -t tmpfs none "$DIR/dev"
        cp -a /dev/userfaultfd "$DIR/dev/"
        chown "0:$GROUP" "$DIR/dev/userfaultfd"
        chmod 660 "$DIR/dev/userfaultfd"
        mount --bind "$DIR/dev/userfaultfd" /dev/userfaultfd
        exec $SETPRIV --reuid $GROUP --regid $GROUP --clear-groups "$@"' sh "$@"
}

# A run by the installation of that name, of a program below DIR.
run() { # PREFIX INSTALLATION PROGRAM ARGUMENT...
    prefix=$1 installed=$dir/$2 program=$dir/$3
    shift 3
    $prefix "$installed/overspill" run --quiet --memory 16M --swap compressed:256M --stats - -- "$program" "$@" >"$dir/out" 2>"$dir/err" ||
        { echo "refused: $(tail -n 1 "$dir/err")"; return; }
    number() { sed -n "s/^ *\"$1\": \([0-9]*\).*/\1/p" "$dir/out" | head -n 1; }
    if [ "$(sed -n '/"escaped"/,$s/^ *"bytes": \([0-9]*\).*/\1/p' "$dir/out" | head -n 1)" -gt 0 ]; then
        echo "outside: $(tail -n 1 "$dir/err")"
    elif [ "$(number pages_out)" -gt 0 ]; then
        echo "in the limit, $(number pages_out) pages out"
    else
        echo "not paged"
    fi
}

# What a process has, in KiB: what it rests in is more than this, and what a limit leaves less.
much=20480
has() { sed -n 's/^RssAnon:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$1/status"; }

# Waits for something, for so long as it may take.
wait_until() { # COMMAND...
    left=$((20 * SLOW))
    until "$@" || [ $left = 0 ]; do
        sleep 1
        left=$((left - 1))
    done
}

# Attaches to a program that this shell has started, and that is no descendant of `overspill attach`.
attach() { # PREFIX INSTALLATION
    $SETPRIV --reuid $user --regid $user --clear-groups "$dir/program" rests &
    program=$!
    rests() { [ "$(has $program)" -ge $much ]; }
    wait_until rests
    $1 "$dir/$2/overspill" attach $program --quiet --memory 16M --swap compressed:256M 2>"$dir/err" &
    attached=$!
    is_done() { ! rests || ! kill -0 $attached 2>/dev/null; }
    wait_until is_done
    memory=$(has $program)
    $1 "$dir/$2/overspill" detach $program >"$dir/detach" 2>&1 || {
        echo "refused: $(cat "$dir/err" "$dir/detach" | head -n 1)"
        kill $program
        return
    }
    wait $attached || true
    kill $program
    if [ "$memory" -lt $much ]; then echo "in the limit, $memory KiB"; else echo "outside: it has $memory KiB"; fi
}

with_yama() { # VALUE COMMAND...
    setting=/proc/sys/kernel/yama/ptrace_scope
    [ -w $setting ] || { echo "skipped: this kernel has no Yama"; return; }
    before=$(cat $setting)
    trap 'echo "$before" >$setting' EXIT
    echo "$1" >$setting
    shift
    "$@"
}

if [ "$1" = prepare ]; then
    shift
    prepare "$@"
    exit
fi
dir=$2
case $1 in
'root') run '' bare program fills ;;
'root, a program with a filter of its own') run '' bare program filters ;;
'root, a program that is not dumpable') run '' bare program hides ;;
'root, a program of another user') run '' bare program becomes_nobody ;;
'root, the first process of a PID namespace') run "$UNSHARE --pid --fork --mount-proc" bare program fills ;;
'root, a program in a PID namespace of its own') run '' bare program enters_namespace ;;
'root, a 32-bit program that it starts')
    [ -e "$dir/program32" ] || { echo "skipped: no 32-bit program could be compiled"; exit; }
    run '' bare sh -c "$dir/program32; exit \$?"
    ;;
'root without CAP_SYS_PTRACE') run "$SETPRIV --bounding-set -sys_ptrace --inh-caps -sys_ptrace --ambient-caps -all" bare program fills ;;
'root of a user namespace') run "as_user $UNSHARE --user --map-root-user" package program fills ;;
'a user of the group') run as_member package program fills ;;
'a user of the group, forks') run as_member package program forks ;;
'a user of the group, a program with a filter of its own') run as_member package program filters ;;
'a user of the group, a program that is not dumpable') run as_member package program hides ;;
'a user of the group, a set-user-ID program') run as_member package set-user-id fills ;;
'a user of the group, attach') attach as_member package ;;
'a user of the group, kernel.yama.ptrace_scope 1') with_yama 1 run as_member package program fills ;;
'a user of the group, attach, kernel.yama.ptrace_scope 1') with_yama 1 attach as_member package ;;
'a user of the group, kernel.yama.ptrace_scope 2') with_yama 2 run as_member package program fills ;;
'any other user') run as_user bare program fills ;;
*)
    echo "no such row: $1" >&2
    exit 2
    ;;
esac
