#!/usr/bin/env python3
"""Programs that check each of their pages, under `overspill run`, while much happens to them.

    storm.py [--seeds N] [--first N] [--seconds N] [--busy]      memory calls of all kinds
    storm.py --store [--seconds N]      a store that forks every second, with direct I/O in flight

A seed is right if the program says so, and no page was lost. With --busy two processes keep the CPUs from it. Each run is a
line, which also says how much memory was in use at most, looked at 50 times a second, a page that several processes have counted
once: of what the kernel fills in one go (MAP_POPULATE), more than the limit. The exit status is 1 if one was wrong.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import harness
from harness import HERE, OVERSPILL
from traces import Watch, private_kib

LIMIT_MIB = 64
STORM_MIB, STORE_MIB, THREADS = 256, 256, 4


@contextmanager
def busy_cpus(wanted):
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() if wanted else 0)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def run(command, seconds, directory):
    """What is wrong, or nothing, and what was seen."""
    report = directory / "report"
    report.unlink(missing_ok=True)
    words = [OVERSPILL, "run", "--quiet", "--memory", f"{LIMIT_MIB}M", "--swap", "ram:2G", "--stats", report]
    process = subprocess.Popen([*words, "--", *command], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watch = Watch(process.pid, private_kib(Path(command[0]).name), 0.02)
    try:
        said, _ = process.communicate(timeout=8 * seconds + 60)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        said, _ = process.communicate()
        return "does not end", {}
    finally:
        watch.stop()
    seen = json.loads(report.read_text()) if report.exists() else {}
    most_mib = max(kib for _, kib, _ in watch.samples) / 1024
    lost = seen.get("summary", {}).get("pages_lost")
    figures = {"out": seen.get("summary", {}).get("pages_out"), "most_mib": round(most_mib), "said": said.strip().splitlines()[-1:]}
    if process.returncode != 0 or "right" not in said or lost != 0:
        return f"status {process.returncode}, {lost} lost: {said.strip()[-300:]}", figures
    return None, figures


def commands(arguments, directory):
    if arguments.store:
        harness.compile_program(HERE / "programs" / "store.c", directory)
        yield "store", [directory / "store", str(STORE_MIB), str(arguments.seconds)]
        return
    harness.compile_program(HERE / "programs" / "storm.c", directory)
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        forks = ["forks"] * (seed % 4 == 0)
        yield f"seed {seed}", [directory / "storm", str(STORM_MIB), str(THREADS), str(arguments.seconds), str(seed), *forks]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--store", action="store_true")
    arguments = parser.parse_args()
    wrong = 0
    with harness.own_directory("storm") as directory, busy_cpus(arguments.busy):
        for name, command in commands(arguments, directory):
            why, figures = run(command, arguments.seconds, directory)
            wrong += why is not None
            print(f"{name}: {why or 'right'} {figures}", flush=True)
    print(f"{wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
