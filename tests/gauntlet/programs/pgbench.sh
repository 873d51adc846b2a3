# pgbench against a server of its own on a socket: pgbench.sh BINARIES SECONDS [OPTION]. Prints whether the books
# balance afterwards, and what failed: the same words whatever the speed.
set -eu
binaries=$1 seconds=$2 option=${3:-}
data=$TMPDIR/data
"$binaries/initdb" -D "$data" -A trust --no-locale -N >"$TMPDIR/initdb.log" 2>&1 || { cat "$TMPDIR/initdb.log"; exit 1; }
"$binaries/postgres" -D "$data" -k "$TMPDIR" -c listen_addresses= -c shared_buffers=32MB -c work_mem=16MB \
    -c fsync=off >"$TMPDIR/server.log" 2>&1 &
server=$!
trap 'kill -INT $server; wait $server || true' EXIT
tries=0
until "$binaries/pg_isready" -q -h "$TMPDIR"; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { echo "the server does not start"; cat "$TMPDIR/server.log"; exit 1; }
    sleep 0.1
done
ask() { "$binaries/psql" -h "$TMPDIR" -At -d postgres -c "$1"; }
"$binaries/pgbench" -h "$TMPDIR" -i -q -s 5 postgres >"$TMPDIR/pgbench.log" 2>&1
# shellcheck disable=SC2086 # no option is no word
"$binaries/pgbench" -h "$TMPDIR" -n -c 4 -j 2 -T "$seconds" $option postgres >"$TMPDIR/pgbench.log" 2>&1 ||
    { cat "$TMPDIR/pgbench.log"; tail -n 20 "$TMPDIR/server.log"; }
grep -E 'aborted|number of failed' "$TMPDIR/pgbench.log" || true
echo "balanced: $(ask "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)
    and (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)
    and (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history)
    and (select count(*) from pgbench_history) > 10")"
ask "set work_mem = '64MB'; select md5(string_agg(x, ',' order by x desc)) from (select md5(i::text) x from generate_series(1, 300000) i) t"
