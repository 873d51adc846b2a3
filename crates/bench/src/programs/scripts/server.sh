# A Redis server on a socket here, with 500 000 values of 400 bytes.
begin() {
    redis-server --port 0 --unixsocket "$PWD/redis" --save '' --appendonly no --daemonize no --logfile log \
        --enable-debug-command yes &
    server=$!
    trap 'kill $server; wait $server' EXIT
    until redis-cli -s redis ping >pong 2>&1; do
        kill -0 $server
        sleep 0.05
    done
    redis-cli -s redis debug populate 500000 key 400 >loaded
}
# Says how much there is, and ends the server.
end() {
    [ "$(redis-cli -s redis dbsize)" = 500000 ]
    echo done
    trap - EXIT
    redis-cli -s redis shutdown nosave
    wait $server
}
