# Reads of the same set, the n-th most popular value 1/n as often as the first.
. ./server.sh
prepare() {
    awk 'BEGIN {
        srand(7); n = 500000
        for (i = 0; i < 200000; i++) {
            rank = int(exp(rand() * log(n)))
            key = "key:" (rank * 7919) % n
            printf "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", length(key), key
        }
    }' >reads
}
work() {
    begin
    redis-cli -s redis --pipe <reads >replies
    tail -n 1 replies
    end
}
