# nginx in the directory it is started in: nginx.sh fetch|reload. Prints sums of what 20 clients at a time got.
#
# A worker that is told to quit may do so in the middle of an answer ("open socket left in connection" in its log),
# plain as well if it is slow: `strace -f -e inject=writev:delay_enter=3000 nginx ...`. During reloads a client
# therefore asks again for what came short.
set -eu
case $1 in
fetch) alarming='exited on signal|alert' retries=0 ;;
reload) alarming='exited on signal' retries=3 ;;
esac
chmod 755 . && mkdir -p tmp1 tmp2 tmp3 tmp4 tmp5
seq 1 900000 >page
nginx -p "$PWD/" -c nginx.conf -g 'daemon off;' 2>start.log &
server=$!
trap 'kill -QUIT $server; wait $server || true; grep -E "$alarming" error.log || true' EXIT
tries=0
until curl -sf -o first http://127.0.0.1:31080/page; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo "the server does not answer"; cat start.log error.log; exit 1; }
    sleep 0.1
done
[ "$1" = fetch ] || (for _ in 1 2 3 4 5 6; do sleep 0.3; kill -HUP $server; done) &
fetch="curl -s --compressed --retry $retries --retry-all-errors -o got.{} http://127.0.0.1:31080/page"
seq 200 | xargs -P 20 -I{} sh -c "$fetch; sha256sum <got.{}" | sort | uniq -c
ab -q -n 400 -c 20 http://127.0.0.1:31080/page 2>&1 | grep -E '^(Complete|Failed|Non-2xx|Total transferred|HTML)' |
    sed '/^Total/d'
