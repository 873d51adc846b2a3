#!/usr/bin/env python3
"""What each way of noticing touches costs, side by side.

    ways.py [--rounds N] [--mib N] [--limit N] [--swap SPEC]

Runs programs/ways.c plain and in each way by turns, and prints medians: ns for a call before memory runs short and after, touches
per second of more memory than the limit.
"""

import argparse
import statistics
import subprocess

import harness
from harness import HERE, OVERSPILL

WAYS = ("plain", "faults", "calls", "touches")


def measure(program, way, arguments):
    words = [program, str(arguments.mib)]
    if way != "plain":
        words = [OVERSPILL, "run", "--quiet", "--memory", f"{arguments.limit}M", "--swap", arguments.swap, "--way", way, "--", *words]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    return {name: float(value) for name, value in map(str.split, lines)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--limit", type=int, default=32)
    parser.add_argument("--swap", default="ram:256M")
    arguments = parser.parse_args()
    with harness.own_directory("ways") as scratch:
        harness.compile_program(HERE / "programs" / "ways.c", scratch)
        rounds = [{way: measure(scratch / "ways", way, arguments) for way in WAYS} for _ in range(arguments.rounds)]
    print(f"{'':16}" + "".join(f"{way:>12}" for way in WAYS))
    for name in rounds[0]["plain"]:
        medians = [statistics.median(one[way][name] for one in rounds) for way in WAYS]
        print(f"{name:16}" + "".join(f"{median:12.0f}" for median in medians))


if __name__ == "__main__":
    main()
