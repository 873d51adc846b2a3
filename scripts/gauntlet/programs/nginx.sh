# nginx in the directory it is started in: nginx.sh fetch|reload. Prints sums of what 20 clients at a time got.
set -eu
chmod 755 . && mkdir -p tmp1 tmp2 tmp3 tmp4 tmp5
seq 1 900000 >page
nginx -p "$PWD/" -c nginx.conf -g 'daemon off;' 2>start.log &
server=$!
trap 'kill -QUIT $server; wait $server || true; grep -E "exited on signal|alert" error.log || true' EXIT
tries=0
until curl -sf -o first http://127.0.0.1:31080/page; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo "the server does not answer"; cat start.log error.log; exit 1; }
    sleep 0.1
done
[ "$1" = fetch ] || (for _ in 1 2 3 4 5 6; do sleep 0.3; kill -HUP $server; done) &
seq 200 | xargs -P 20 -I{} sh -c 'curl -s --compressed http://127.0.0.1:31080/page | sha256sum' | sort | uniq -c
ab -q -n 400 -c 20 http://127.0.0.1:31080/page 2>&1 | grep -E '^(Complete|Failed|Non-2xx|Total transferred|HTML)' |
    sed '/^Total/d'
