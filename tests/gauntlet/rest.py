#!/usr/bin/env python3
"""What a run costs that stays far below its limit: programs plain and in `overspill run`, by turns.

    rest.py [--rounds N] [WORKLOAD...]

Prints medians, the median of the ratios of a round, and of the differences. `make` builds Debian's hello, which it fetches.
"""

import argparse
import random
import statistics
import subprocess
import time

import debian
import harness
from harness import OVERSPILL

LIMIT = "6G"
TOUCHES = """\
#include <sys/mman.h>
int main(void) {
    for (int round = 0; round < 6; round++) {
        char *memory = mmap(0, 512 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (long at = 0; at < 512 << 20; at += 4096)
            memory[at] = 1;
        munmap(memory, 512 << 20);
    }
    return 0;
}
"""
REGEX = '#include <iostream>\n#include <regex>\nint main() { std::cout << std::regex_match("aab", std::regex("a+b")); }\n'
WORKLOADS = {
    "true": ["true"],
    "shell": ["sh", "-c", "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done"],
    "g++": ["g++", "-O1", "-c", "regex.cc", "-o", "/dev/null"],
    "touches": ["./touches"],
    "dictionary": ["python3", "-c", "d = {i: str(i) for i in range(3000000)}; print(sum(map(len, d.values())))"],
    "sort": ["sort", "-S", "1G", "lines", "-o", "/dev/null"],
    "make": ["sh", "-c", "rm -rf built && cp -rp hello built && cd built && ./configure -q && make -s -j2 && ./hello"],
}
SHORT = "true"


def prepare(directory, names):
    (directory / "touches.c").write_text(TOUCHES)
    harness.compile_program(directory / "touches.c", directory)
    (directory / "regex.cc").write_text(REGEX)
    with open(directory / "lines", "w") as lines:
        chance = random.Random(1)
        lines.writelines(f"{chance.random()}\n" for _ in range(3000000))
    if "make" in names:
        debian.unpack_source("hello", directory / "hello")


def seconds(words, directory):
    begun = time.monotonic()
    subprocess.run(words, cwd=directory, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - begun


def measure(name, directory, rounds):
    plain = WORKLOADS[name]
    limited = [OVERSPILL, "run", "--quiet", "--memory", LIMIT, "--", *plain]
    pairs = []
    for number in range(rounds + 1):
        turn = (plain, limited) if number % 2 else (limited, plain)
        took = {words is limited: seconds(words, directory) for words in turn}
        pairs.append((took[False], took[True]))
    # The first warms up.
    pairs = pairs[1:]
    ratio = statistics.median(run / alone for alone, run in pairs)
    more_ms = 1000 * statistics.median(run - alone for alone, run in pairs)
    alone, run = (statistics.median(one) for one in zip(*pairs))
    print(f"{name}: plain {alone:.4f} s, run {run:.4f} s, ×{ratio:.3f}, {more_ms:+.2f} ms", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    arguments = parser.parse_args()
    names = arguments.workloads or WORKLOADS
    with harness.own_directory("rest") as directory:
        prepare(directory, names)
        for name in names:
            measure(name, directory, arguments.rounds * (3 if name == SHORT else 1))


if __name__ == "__main__":
    main()
