#!/usr/bin/env python3
"""How long requests to a server take while it is put into a limit, and when it is let go.

    latency.py [--mib N] [--limit N] [--swap PLACES] [--seconds N] [--plot FILE]

A Go server with N MiB of values is asked for one after the other, nine times of ten for one of a tenth of them; each answer is
checked. It is attached to after a third of the time, and let go after two. Prints how long requests took in each part, and
draws all of them as SVG (needs python3-matplotlib), with the memory that the server has.
"""

import argparse
import http.client
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import harness
from harness import HERE, OVERSPILL
from traces import Watch, private_kib, pyplot

SIZE = 4096
PAUSE_SECONDS = 0.001
HOT_PART, HOT_SHARE = 0.1, 0.9


def value(n):
    word = f"{n}."
    return (word * (SIZE // len(word) + 1))[:SIZE].encode()


class Client(threading.Thread):
    """Asks until it is told to end. Notes when each answer came, and after how many ms."""

    def __init__(self, port, count):
        super().__init__()
        self.port, self.count, self.answers, self.over, self.wrong = port, count, [], False, 0
        self.begun = time.monotonic()
        self.daemon = True

    def run(self):
        chance, connection = random.Random(1), http.client.HTTPConnection("127.0.0.1", self.port)
        while not self.over:
            most = self.count * (HOT_PART if chance.random() < HOT_SHARE else 1)
            n = chance.randrange(int(most))
            asked = time.monotonic()
            connection.request("GET", f"/{n}")
            answer = connection.getresponse().read()
            now = time.monotonic()
            self.wrong += answer != value(n)
            self.answers.append((now - self.begun, 1000 * (now - asked)))
            time.sleep(PAUSE_SECONDS)

    def end(self):
        self.over = True
        self.join()


def serve(directory, count):
    program = directory / "values"
    subprocess.run(["go", "build", "-o", program, HERE / "programs" / "values.go"], check=True,
                   env=os.environ | {"GO111MODULE": "off", "CGO_ENABLED": "0", "GOCACHE": str(harness.WORK / "go-cache")})
    server = subprocess.Popen([program, str(count), str(SIZE)], stdout=subprocess.PIPE, text=True)
    return server, int(server.stdout.readline())


def attach(server, arguments):
    words = ["attach", "--background", str(server.pid), "--memory", f"{arguments.limit}M", "--swap", arguments.swap]
    subprocess.run([OVERSPILL, *words], check=True)


def at(share, values):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def tell(parts, answers):
    for name, (begin, end) in parts.items():
        took = [ms for moment, ms in answers if begin <= moment < end]
        shares = ", ".join(f"{100 * share:g} % {at(share, took):.2f}" for share in (0.5, 0.99, 0.999, 1))
        print(f"{name}: {len(took)} requests; ms: {shares}")


def draw(answers, samples, moments, limit_mib, file):
    figure, (times, memory) = pyplot().subplots(2, 1, figsize=(8, 5), sharex=True, layout="constrained")
    times.scatter(*zip(*answers), s=1, rasterized=True, linewidths=0)
    times.set(yscale="log", ylabel="ms for a request")
    memory.plot([moment for moment, _, _ in samples], [kib / 1024 for _, kib, _ in samples])
    memory.axhline(limit_mib, linestyle=":", color="grey", label="limit")
    memory.set(xlabel="s", ylabel="MiB in memory", ylim=(0, None))
    memory.legend(fontsize="small")
    for axes in (times, memory):
        for name, moment in moments.items():
            axes.axvline(moment, color="grey", linewidth=0.5)
            axes.annotate(name, (moment, 1), xycoords=("data", "axes fraction"), fontsize="small", va="bottom")
    figure.savefig(file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--limit", type=int, default=128)
    parser.add_argument("--swap", default="compressed:1G")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    count = arguments.mib * harness.MIB // SIZE
    with harness.own_directory("latency") as directory:
        server, port = serve(directory, count)
        client = Client(port, count)
        watch = Watch(os.getpid(), private_kib("values"), 0.05)
        client.start()
        moments = {}
        for name, act in (("attach", lambda: attach(server, arguments)),
                          ("detach", lambda: subprocess.run([OVERSPILL, "detach", str(server.pid)], check=True))):
            time.sleep(arguments.seconds / 3)
            moments[name] = time.monotonic() - client.begun
            act()
            moments[f"{name}ed"] = time.monotonic() - client.begun
        time.sleep(arguments.seconds / 3)
        client.end()
        watch.stop()
    end = client.answers[-1][0]
    tell({"before": (0, moments["attach"]), "attach and 2 s": (moments["attach"], moments["attach"] + 2),
          "in the limit": (moments["attach"] + 2, moments["detach"]), "detach": (moments["detach"], moments["detached"] + 0.5),
          "after": (moments["detached"] + 0.5, end)}, client.answers)
    if arguments.plot:
        shown = {"attach": moments["attach"], "detach": moments["detach"]}
        draw(client.answers, watch.samples, shown, arguments.limit, arguments.plot)
    return 1 if client.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
