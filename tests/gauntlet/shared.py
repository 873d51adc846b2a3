#!/usr/bin/env python3
"""Programs of many processes in one limit, and in the same memory divided evenly among them.

    shared.py [--rounds N] [--plot FILE] [WORKLOAD...]

Runs each workload by turns with `--memory M` and with `--memory-each`, M divided by the number of its processes, and adds up
the proportional set sizes of all processes ten times a second: what each has alone, and its part of what it shares. Prints
medians, and draws the sums of the first round of `--memory` as SVG (needs python3-matplotlib).
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import debian
import harness
from gauntlet import prepare
from harness import HERE, OVERSPILL, SWAP, WORK
from suites import gcc, postgres
from traces import Watch, name_of, plot, pyplot, rollup_kib

MIB = 1 << 20
BESIDE_MIB = 3  # of a process, beside the limit
BUILD = "cmake -S ../source -B . -DFMT_DOC=OFF -DCMAKE_CXX_FLAGS=-O1 >log 2>&1 && make -j8 fmt format-test chrono-test ranges-test \
args-test color-test core-test os-test printf-test scan-test std-test unicode-test xchar-test >>log 2>&1"

# Name: limit in MiB, processes that use much of it, and the command.
WORKLOADS = {
    "make -j8": (768, 8, f"rm -rf $TMPDIR/build && cp -r {WORK}/gcc/tree/source $TMPDIR && mkdir $TMPDIR/build && cd $TMPDIR/build && {BUILD}"),
    "Python pool of 8": (256, 8, f"python3 {HERE}/programs/pool.py 8 30"),
    "PostgreSQL, 40 connections": (64, 40, f"sh {HERE}/programs/pgbench.sh {postgres.HOME}/bin 20 '-c 40'"),
    "fork tree of 200": (64, 200, f"python3 {HERE}/programs/fork_tree.py 200"),
}


def proportional_kib(pid):
    """Of a process, or None if it has ended. An agent's memory is its program's."""
    return None if name_of(pid) == "overspill-agent" else rollup_kib(pid, "Pss")


def run(command, option, limit_mib, user):
    with harness.own_directory("shared") as scratch:
        identity = {}
        if user:
            account = harness.ordinary_user()
            os.chown(scratch, account.pw_uid, account.pw_gid)
            identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        words = [OVERSPILL, "run", "--quiet", option, f"{limit_mib}M", "--swap", SWAP, "--", "sh", "-c", command]
        begun = time.monotonic()
        process = subprocess.Popen(words, env=os.environ | {"TMPDIR": str(scratch)}, cwd=scratch, start_new_session=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **identity)
        watch = Watch(process.pid, proportional_kib, 0.1)
        try:
            status = process.wait()
        finally:
            watch.stop()
        if status != 0:
            sys.exit(f"{command}: status {status}")
        return time.monotonic() - begun, watch.samples


def excess_mib(samples, limit_mib):
    """The most above the limit and what each process may have beside it."""
    return max(kib / 1024 - limit_mib - BESIDE_MIB * processes for _, kib, processes in samples)


def compare(name, rounds):
    limit_mib, processes, command = WORKLOADS[name]
    user, seconds, first, excess = name.startswith("PostgreSQL"), {"--memory": [], "--memory-each": []}, None, []
    for _ in range(rounds):
        for option, each in (("--memory", limit_mib), ("--memory-each", max(4, limit_mib // processes))):
            took, samples = run(command, option, each, user)
            seconds[option].append(took)
            if option == "--memory":
                first = first or samples
                excess.append(excess_mib(samples, limit_mib))
    one, even = (statistics.median(seconds[option]) for option in seconds)
    peak, count = max(kib for _, kib, _ in first) / 1024, max(processes for *_, processes in first)
    print(f"{name}: limit {limit_mib} MiB, {count} processes, peak {peak:.0f} MiB, at most {max(excess):.0f} MiB above the limit and "
          f"{BESIDE_MIB} MiB for each; {one:.1f} s, divided evenly {even:.1f} s", flush=True)
    return first


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    arguments = parser.parse_args()
    plotter = pyplot() if arguments.plot else None
    harness.become_subreaper()
    debian.install(postgres.PACKAGES)
    prepare("gcc", gcc)
    with harness.userfaultfd_for_users():
        traces = {name: compare(name, arguments.rounds) for name in arguments.workloads or WORKLOADS}
    if arguments.plot:
        limits_mib = {name: workload[0] for name, workload in WORKLOADS.items()}
        plot(traces, limits_mib, BESIDE_MIB, arguments.plot, plotter)


if __name__ == "__main__":
    main()
