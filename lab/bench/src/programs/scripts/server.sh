# A Redis server on a socket here, with 500 000 values of 400 bytes under the names of redis-benchmark.
begin() {
    redis-server --port 0 --unixsocket "$PWD/redis" --save '' --appendonly no --daemonize no --logfile log &
    server=$!
    trap 'kill $server; wait $server' EXIT
    until redis-cli -s redis ping >pong 2>&1; do
        kill -0 $server
        sleep 0.05
    done
    redis-cli -s redis eval "
        local value = string.rep('v', 400)
        for n = 0, 499999 do redis.call('SET', string.format('key:%012d', n), value) end
        " 0 >loaded
}
# Checks that all is still there, and ends the server.
end() {
    [ "$(redis-cli -s redis dbsize)" = 500000 ]
    echo done
    trap - EXIT
    redis-cli -s redis shutdown nosave
    wait $server
}
