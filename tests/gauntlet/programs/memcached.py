"""Memcached: 120 values of up to 1.5 MB, read twice and compared."""

import hashlib
import socket
import subprocess
import time

PORT, VALUES = 21999, 120


def value(number):
    return (hashlib.sha256(b"%d" % number).digest() * (1 + number * 7919 % 60000))[:1000 + number * 104729 % 1500000]


def connect():
    while True:
        try:
            return socket.create_connection(("127.0.0.1", PORT))
        except ConnectionRefusedError:
            time.sleep(0.05)


def read(connection, number):
    connection.write(b"get k%d\r\n" % number)
    connection.flush()
    head = connection.readline().split()
    if len(head) < 4:
        return None  # it was thrown out
    found = connection.read(int(head[3]) + 2)[:-2]
    connection.readline()
    return found


server = subprocess.Popen(["memcached", "-u", "root", "-p", str(PORT), "-m", "512", "-I", "8m", "-t", "2", "-l", "127.0.0.1"])
connection = connect().makefile("rwb")
stored = 0
for number in range(VALUES):
    content = value(number)
    connection.write(b"set k%d 0 0 %d\r\n%s\r\n" % (number, len(content), content))
    connection.flush()
    stored += connection.readline() == b"STORED\r\n"
right = sum(read(connection, number) == value(number) for _ in range(2) for number in range(VALUES))
print(f"{stored} stored, {right} right")
server.terminate()
server.wait()
