# pgbench reads from PostgreSQL: 192 MiB of buffers, a database of 300 MiB, 8 clients, 32 000 reads.
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
# It refuses to run as root.
as_server() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid nobody --regid nogroup --clear-groups "$@"
    else
        "$@"
    fi
}
pgbench_of() { as_server "$bin/pgbench" -h "$PWD/data" "$@" postgres; }
psql_of() { as_server "$bin/psql" -h "$PWD/data" -d postgres "$@"; }
stop() { as_server "$bin/pg_ctl" -D "$PWD/data" -m "$1" stop >stopped 2>&1; }
begin() {
    as_server "$bin/postgres" -D "$PWD/data" -k "$PWD/data" -c listen_addresses= -c fsync=off \
        -c shared_buffers=192MB -c huge_pages=off >log 2>&1 &
    server=$!
    trap 'stop immediate' EXIT
    until psql_of -c 'select 1' >ready 2>&1; do
        kill -0 $server
        sleep 0.1
    done
}
end() {
    trap - EXIT
    stop fast
    wait $server
}
prepare() {
    mkdir data
    chmod 711 .
    [ "$(id -u)" != 0 ] || chown nobody data
    as_server "$bin/initdb" -D "$PWD/data" -A trust >made 2>&1
    begin
    pgbench_of -i -s 20 -q >filled 2>&1
    end
}
work() {
    begin
    pgbench_of -n -S -c 8 -t 4000 >rate 2>&1
    psql_of -At -c 'select count(*), sum(abalance) from pgbench_accounts'
    end
}
