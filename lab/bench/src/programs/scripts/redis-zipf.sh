# Reads of the same set, a hundred at a time; the n-th most popular value 1/n as often as the first.
. ./server.sh
prepare() { :; }
work() {
    begin
    /usr/bin/python3 - <<'PYTHON'
import random, socket
VALUES, READS, AT_A_TIME, REPLY = 500_000, 200_000, 100, len("$400\r\n") + 400 + 2
random.seed(7)
server = socket.socket(socket.AF_UNIX)
server.connect("redis")
replies = server.makefile("rb")
total = 0
for _ in range(READS // AT_A_TIME):
    ranks = (int(VALUES ** random.random()) for _ in range(AT_A_TIME))
    keys = (f"key:{rank * 7919 % VALUES:012}" for rank in ranks)
    server.sendall("".join(f"GET {key}\r\n" for key in keys).encode())
    found = replies.read(REPLY * AT_A_TIME)
    total += sum(found)
print(total)
PYTHON
    end
}
