#!/usr/bin/env python3
"""What is resident in a program under `overspill run`, at the moment when it is most.

    resident.py [OPTIONS OF overspill run] -- PROGRAM [ARGS]...

Looks into /proc/PID/smaps ten times a second and prints MiB by kind, for the largest process. What userfaultfd has
registered is what the limit holds (pages and staging memory); the pager's tables and threads are among the rest of anonymous
memory. $OVERSPILL names the program.
"""

import collections
import re
import subprocess
import sys
import time
from pathlib import Path

import harness

MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ \d+ *(.*)")
REGISTERED = {"um", "uw"}  # with userfaultfd
ORDER = ["pages and staging", "tables, stacks, other anonymous", "overspill's own files", "program's files", "shared memory"]


def kind_of(permissions, path):
    if "overspill" in path:
        return "overspill's own files"
    if permissions[3] == "s":
        return "shared memory"
    return "program's files" if path.startswith("/") else "tables, stacks, other anonymous"


def resident(pid):
    """KiB by kind."""
    kinds = collections.Counter()
    kind = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if mapping := MAPPING.fullmatch(line):
            kind, here = kind_of(*mapping.groups()), 0
        elif name == "Rss":
            here = int(rest.split()[0])
        elif name == "VmFlags":
            kinds["pages and staging" if REGISTERED & set(rest.split()) else kind] += here
    return kinds


def main():
    run = subprocess.Popen([harness.OVERSPILL, "run", "--quiet", *sys.argv[1:]], stdout=subprocess.DEVNULL)
    most = collections.Counter()
    while run.poll() is None:
        for pid in harness.descendants(run.pid):
            try:
                most = max(most, resident(pid), key=collections.Counter.total)
            except OSError:
                continue  # it has ended meanwhile
        time.sleep(0.1)
    for kind in ORDER:
        print(f"{kind:34} {most[kind] / 1024:7.1f}")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
