#!/usr/bin/env python3
"""How far above its limit a run gets, at most, with programs that fill memory as fast as they can.

    strict.py [--rounds N] [--plot FILE] [WORKLOAD...]

Adds up what all processes have of private memory, a page that they share counted once, 50 times a second, and takes what
a keeper's run itself saw at most. Prints the largest of all rounds, and draws the first as SVG (needs python3-matplotlib).
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import harness
from harness import HERE, MIB, OVERSPILL
from traces import Watch, plot, private_kib, pyplot

# Name: limit in MiB, and the arguments.
WORKLOADS = {
    "flood, one mapping": (256, ["flood", "1024", "1048576"]),
    "flood, 1 MiB mappings": (256, ["flood", "1024", "1024"]),
    "flood, 4 MiB mappings, huge pages": (256, ["flood", "1024", "4096"]),
    "crowd of 50, 64 MiB each": (512, ["crowd", "50", "64"]),
    "200 processes at random": (48, ["random", "200", "1"]),
    "fork tree of 63, 16 MiB each": (128, ["tree", "5", "16"]),
}


def run(directory, limit_mib, arguments):
    """The most that the run saw, in MiB, and the samples."""
    report = directory / "report"
    words = [OVERSPILL, "run", "--quiet", "--memory", f"{limit_mib}M", "--swap", "ram:8G", "--stats", report]
    process = subprocess.Popen([*words, "--", directory / "strict", *arguments], stdout=subprocess.PIPE, text=True)
    watch = Watch(process.pid, private_kib("strict"), 0.02)
    try:
        said, _ = process.communicate()
    finally:
        watch.stop()
    seen = json.loads(report.read_text())
    if said != "right\n" or seen["summary"]["pages_lost"]:
        sys.exit(f"{arguments}: status {process.returncode}, {said}")
    return seen.get("held_bytes_max", 0) / MIB, watch.samples


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="; ".join(WORKLOADS))
    arguments = parser.parse_args()
    traces, plotter = {}, pyplot() if arguments.plot else None
    with harness.own_directory("strict") as directory:
        harness.compile_program(HERE / "programs" / "strict.c", directory)
        for name in arguments.workloads or WORKLOADS:
            limit_mib, command = WORKLOADS[name]
            rounds = [run(directory, limit_mib, command) for _ in range(arguments.rounds)]
            traces[name] = rounds[0][1]
            most = sorted(round(most) for most, _ in rounds)
            seen = max(kib for _, samples in rounds for _, kib, _ in samples) / 1024
            print(f"{name}: limit {limit_mib} MiB; at most {most} MiB by its own count, {seen:.0f} MiB seen", flush=True)
    if arguments.plot:
        limits_mib = {name: limit for name, (limit, _) in WORKLOADS.items()}
        plot(traces, limits_mib, None, arguments.plot, plotter)


if __name__ == "__main__":
    main()
