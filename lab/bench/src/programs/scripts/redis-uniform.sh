# redis-benchmark reads values of a set four times as large as memory, all equally often.
. ./server.sh
prepare() { :; }
work() {
    begin
    redis-benchmark -s redis -q -c 50 -n 200000 -r 500000 get key:__rand_int__ >rate 2>&1
    end
}
