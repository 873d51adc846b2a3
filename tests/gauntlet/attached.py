#!/usr/bin/env python3
"""Runs a program plain, and puts it into a limit and lets it go again, over and over at random moments, until it ends.

    attached.py --memory M [--overspill FILE] [--swap PLACES] [--stats FILE] [--user UID:GID] [--seed N] [--pause SECONDS]
        -- PROGRAM [ARGS]...

This process is the one that is attached to, as the ancestor of all that the program starts, daemons too. It ends with the
program's status; with 125 if an attachment failed, which it says. FILE has, as JSON, how many attachments there were, the
counters of all of them together.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import harness

FAILED = 125


@dataclass
class Report:
    attachments: int = 0
    pages_in: int = 0
    pages_out: int = 0
    pages_lost: int = 0

    def add(self, file):
        """What one attachment has counted."""
        counted = harness.read_statistics(file)
        for name in ("pages_in", "pages_out", "pages_lost"):
            setattr(self, name, getattr(self, name) + (counted[name] or 0))
        self.attachments += 1


def attach_once(arguments, spend, report):
    """Attaches, and lets go when `spend` returns; returns what is wrong, or nothing."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "counted"
        words = [arguments.overspill, "attach", "--quiet", str(os.getpid()), "--memory", arguments.memory,
                 "--swap", arguments.swap, "--stats", file]
        attached = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        spend()
        attached.send_signal(signal.SIGINT)
        _, said = attached.communicate()
        report.add(file)
    # In its first moments it ends by the signal.
    is_right = attached.returncode in (0, -signal.SIGINT) and not said
    return None if is_right else f"status {attached.returncode}: {said}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", required=True)
    parser.add_argument("--overspill", type=Path, default=harness.OVERSPILL)
    parser.add_argument("--swap", default=harness.SWAP)
    parser.add_argument("--stats", type=Path)
    parser.add_argument("--user")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=2)
    parser.add_argument("program", nargs="+")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    harness.become_subreaper()
    identity = dict(zip(("user", "group"), map(int, arguments.user.split(":"))), extra_groups=[]) if arguments.user else {}
    program = subprocess.Popen(arguments.program, **identity)
    report, wrong = Report(), []

    def spend():
        """Waits for a while; true if the program has ended."""
        return harness.wait_for(program, chance.random() * arguments.pause) is not None

    while not spend():
        wrong += filter(None, [attach_once(arguments, spend, report)])
    if arguments.stats:
        arguments.stats.write_text(json.dumps(asdict(report)))
    sys.stderr.write("".join(f"attached.py: {why}\n" for why in wrong))
    status = program.returncode
    return FAILED if wrong else status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
