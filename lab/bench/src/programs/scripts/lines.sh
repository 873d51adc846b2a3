# Lines of about 475 bytes, every time the same: a number, a host, an id and text.
lines() { # log|random COUNT
    awk -v order="$1" -v lines="$2" 'BEGIN {
        srand(7)
        pad = "the quick brown fox jumps over the lazy dog and runs into the dark wood, or so it hopes; "
        while (length(pad) < 600) pad = pad pad
        for (i = 0; i < lines; i++) {
            number = order == "log" ? i * 1000 + rand() * 10000000 : rand() * lines * 1000
            printf "%012d host%02d {\"id\":%d,\"text\":\"%s\"}\n", number, rand() * 40, i, \
                substr(pad, 1 + int(rand() * 60), 430)
        }
    }'
}
