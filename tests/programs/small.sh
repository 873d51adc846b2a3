#!/bin/sh
# What scripts/kernel-programs.sh runs on each kernel, by busybox: says of each program whether it did what it should, in all
# ways and in Docker's default profile, or those that are named.
failed=0
swap=compressed:1G

try() { # NAME COMMAND...
    name=$1
    shift
    if "$@" >out 2>err; then
        echo "ok: $name"
    else
        echo "FAILED: $name: $(cat out err | tail -n 3)"
        failed=1
    fi
}

# In a way, as the user that `as` says: what it says is as plain, and pages go out.
same() { # MEMORY PROGRAM...
    rm -f stats
    "/programs/$2" ${3:+"$3"} >plain
    $as /programs/overspill run --quiet ${way:+--way $way} --memory "$1" --swap $swap --stats stats -- "/programs/$2" ${3:+"$3"} >paged &&
        cmp plain paged && grep -q '"pages_out": *[1-9]' stats
}

sorts() {
    awk 'BEGIN { srand(1); for (n = 0; n < 200000; n++) printf "%08d%08d %d\n", rand() * 1e8, rand() * 1e8, n }' >lines
    rm -f stats
    /programs/sort -S 64M lines >plain
    $as /programs/overspill run --quiet ${way:+--way $way} --memory 12M --swap $swap --stats stats -- /programs/sort -S 64M lines >sorted
    cmp plain sorted
}

memory_kib() { sed -n 's/^RssAnon:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$1/status"; }

attaches() {
    attach works_on &
    program=$!
    sleep 20
    for round in 1 2 3; do
        overspill attach $program --background --memory 48M --swap $swap || return
        sleep 20
        [ "$(memory_kib $program)" -lt 65536 ] || { echo "it has $(memory_kib $program) KiB in round $round"; return 1; }
        overspill detach $program || return
        [ "$(memory_kib $program)" -gt 98304 ] || { echo "it has $(memory_kib $program) KiB, let go"; return 1; }
    done
    kill $program
    wait $program
}

# What busybox has under these names does less.
who() {
    export SETPRIV=/programs/setpriv SETCAP=/programs/setcap UNSHARE=/programs/unshare SLOW=6
    sh /programs/rights.sh prepare "$PWD/rights" /programs /programs/rights /programs/word32 || return
    sed -n '/^| who, and what |/,/^$/s/^| \(.*\) | \(.*\) |$/\1;\2/p' /programs/limits.md | sed 1,1d | while IFS=';' read -r row expected; do
        found=$(sh /programs/rights.sh "$row" "$PWD/rights" 2>&1)
        case $found in
        "$expected"* | skipped*) echo "ok: $row: $found" >&3 ;;
        *) echo "FAILED: $row: $found, not $expected" >&3; touch wrong ;;
        esac
    done
    [ ! -e wrong ]
}

exec 3>&1
export TMPDIR=/tmp
chmod 1777 .
overspill doctor
for where in ${*:-faults calls touches docker}; do
    way=$where as="/programs/setpriv --reuid 65534 --regid 65534 --clear-groups"
    case $where in
    faults) as= ;;
    # As who is in a container has it, with the way that is found.
    docker) way= as="$as /programs/under_filter /programs/docker.bpf" ;;
    esac
    if ! $as /programs/overspill run --quiet ${way:+--way $way} --memory 16M --swap $swap -- true 2>lack; then
        echo "no $where: $(cat lack)"
        continue
    fi
    for case in "84M keeper threads" "92M keeper starts_others" "84M keeper children_execute" "24M keeper writes_code" \
        "84M static threads" "48M tree"; do
        # shellcheck disable=SC2086
        try "$where: $case" same $case
    done
    try "$where: sort" sorts
    [ $where = faults ] || continue
    try "attach" attaches
    try "all kinds of users" who
done
exit $failed
