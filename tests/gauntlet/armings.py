#!/usr/bin/env python3
"""Attaches to programs and detaches again, at random moments, as an ordinary user and as one in Docker's default profile.

    armings.py [--rounds N] [--seed N]

The programs of tests/programs/attach.c work on all the while, with threads, and with children or not, and check every page that they
have, all of them in the end. So gates are shut, and opened, at whatever the threads do. As root it takes setpriv.
"""

import argparse
import random
import signal
import subprocess
import sys
import time

import harness
from harness import OVERSPILL, ROOT

USER = "65534"
AS_USER = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"]
CONTAINER = ROOT / "tests" / "programs" / "container"
IN_DOCKER = ["python3", CONTAINER / "docker_seccomp.py", "--uid", USER, CONTAINER / "default.json"]
WAYS = {"calls": AS_USER, "touches": IN_DOCKER}
CASES = ("works_on", "works_on_and_forks")
LONGEST_PAUSE_SECONDS = 0.4


def command(who, *words):
    try:
        done = subprocess.run([*who, OVERSPILL, *words], capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{words}: it hangs") from None
    if done.returncode != 0:
        raise SystemExit(f"{words}: status {done.returncode}: {done.stderr}")


def arm(program, way, case, rounds, chance):
    """Returns what went wrong, or nothing."""
    with open(harness.WORK / "armings.log", "w+") as log:
        subject = subprocess.Popen([*AS_USER, program, case], stdout=log, stderr=log)
        for _ in range(rounds):
            time.sleep(chance.random() * LONGEST_PAUSE_SECONDS)
            command(WAYS[way], "attach", str(subject.pid), "--background", "--memory", "48M", "--swap", "compressed:1G")
            time.sleep(chance.random() * LONGEST_PAUSE_SECONDS)
            if subject.poll() is not None:
                break
            command(WAYS[way], "detach", str(subject.pid))
        subject.send_signal(signal.SIGTERM)
        code = harness.wait_for(subject, 60)
        log.seek(0)
        return "" if code == 0 else f"{way}, {case}: {harness.how_it_ended(code)}: {log.read()}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    harness.WORK.mkdir(parents=True, exist_ok=True)
    each = arguments.rounds // (len(WAYS) * len(CASES))
    wrong = []
    with harness.own_directory("armings") as scratch:
        scratch.chmod(0o755)
        source = ROOT / "tests" / "programs" / "attach.c"
        subprocess.run(["cc", "-O1", "-pthread", "-o", scratch / "attach", source], check=True)
        for way in WAYS:
            for case in CASES:
                started = time.monotonic()
                failed = arm(scratch / "attach", way, case, each, chance)
                print(f"{way:8} {case:20} {each} rounds, {time.monotonic() - started:6.1f} s {failed or 'right'}", flush=True)
                wrong += [failed] if failed else []
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
