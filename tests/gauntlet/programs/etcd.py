"""Etcd: 3000 values of 4 kB by 16 clients, a part of them read back; then etcd's own benchmark, if asked for."""

import base64
import concurrent.futures
import json
import subprocess
import sys
import tempfile
import time
import urllib.request

CLIENT, PEER = "http://127.0.0.1:22379", "http://127.0.0.1:22380"
KEYS = 3000


def call(path, body):
    request = urllib.request.Request(f"{CLIENT}/v3/{path}", json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request, timeout=100))


def coded(data):
    return base64.b64encode(data).decode()


def key(number):
    return coded(b"k%05d" % number)


def value(number):
    return bytes([number % 251]) * 4000


def put(number):
    call("kv/put", {"key": key(number), "value": coded(value(number))})


def is_right(number):
    found = call("kv/range", {"key": key(number)})["kvs"][0]["value"]
    return base64.b64decode(found) == value(number)


def wait_for_start():
    while True:
        try:
            return call("maintenance/status", {})
        except OSError:
            time.sleep(0.1)


with tempfile.TemporaryDirectory() as directory:
    command = ["etcd", "--data-dir", directory, "--listen-client-urls", CLIENT, "--advertise-client-urls", CLIENT,
               "--listen-peer-urls", PEER]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_start()
    if sys.argv[1] == "values":
        with concurrent.futures.ThreadPoolExecutor(16) as clients:
            list(clients.map(put, range(KEYS)))
        print(sum(map(is_right, range(0, KEYS, 7))), "right")
    else:
        said = subprocess.run(["etcdctl", "--endpoints", CLIENT, "check", "perf", "--load=s"], capture_output=True, text=True)
        print(said.stdout)
    server.terminate()
    server.wait()
