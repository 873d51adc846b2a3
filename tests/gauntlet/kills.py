#!/usr/bin/env python3
"""Kills programs under `overspill run` at random moments, and looks for what they leave behind.

    kills.py [--kills N] [--seed N]

What is killed with SIGKILL: the program, the supervisor, a child, the keeper, its holder, or an agent. Nothing may be left some
seconds after what the kill did not reach has done its work: no process, no file in the swap directory, no shared memory, no
loop device in use. The one exception is the name of a socket, which a supervisor that is killed in its first moments leaves. The
programs check their pages: none may ever have met a wrong byte. KILLS is the default for kills (10000).
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness
from harness import HERE, OVERSPILL

PATIENCE_SECONDS = 10
# Children of a killed program go on, for two seconds of a machine without other work.
WORK_SECONDS = 60
LONGEST_MOMENT_SECONDS = 0.6
# By the names of their processes.
OURS = {"keeper": "ovs-keeper", "holder": "ovs-holder", "agent": "overspill-agent"}


def victim(supervisor, whom):
    """The number of who is to be killed, or None if there is none at this moment."""
    if whom == "supervisor":
        return supervisor
    below = [(pid, name_of(pid)) for pid in harness.descendants(supervisor)]
    if whom in OURS:
        return next((pid for pid, name in below if name == OURS[whom]), None)
    programs = [pid for pid, name in below if name in ("soak", "storm")]
    if whom == "program":
        return programs[0] if programs else None
    return programs[-1] if len(programs) > 1 else None


def name_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


def programs():
    """Children that have yet to end."""
    return [pid for pid in harness.children() if not reaped(pid)]


def attached_loops():
    shown = subprocess.run(["losetup", "-nO", "NAME,AUTOCLEAR"], capture_output=True, text=True)
    return set(shown.stdout.split())


def shared_memory():
    return {path.name for path in Path("/dev/shm").iterdir() if "overspill" in path.name}


def left_behind(swap, loops, shared):
    """In words; empty if there is nothing."""
    harness_children = harness.children()
    found = [f"process {pid}: {command_of(pid)}" for pid in harness_children if not reaped(pid)]
    found += [f"file {path}" for path in swap.iterdir() if not path.is_socket()]
    found += [f"shared memory {name}" for name in shared_memory() - shared]
    found += [f"loop device {name}" for name in attached_loops() - loops if name.startswith("/dev/loop")]
    return found


def reaped(pid):
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "ended"


def wait_until_nothing(check, seconds=PATIENCE_SECONDS):
    until = time.monotonic() + seconds
    while (found := check()) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def is_wrong_byte(line):
    """Programs complain about children that were killed, too."""
    return "WRONG" in line and "ended with" not in line


def one_kill(directory, swap, chance, number):
    """Starts a program, kills someone, and returns what is left behind."""
    loops, shared = attached_loops(), shared_memory()
    whom = chance.choice(["program", "supervisor", "child", "child", "keeper", "holder", "agent", "agent"])
    program = chance.choice([["soak", "touch", str(chance.randint(1, 4)), "24", "2", str(number)],
                             ["soak", "forks", "0", "16", "2", str(number)],
                             ["storm", "48", "2", "2", str(number), "forks"]])
    place = chance.choice([f"file:{swap}", f"file:{swap}/named:64M", "ram:256M,mirror=ram:256M", "compressed:256M",
                           "ram:256M"])
    command = [str(OVERSPILL), "run", "--quiet", "--memory", "8M", "--swap", place, "--",
               str(directory / program[0]), *program[1:]]
    with open(directory / "output", "wb") as output:
        supervisor = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                      start_new_session=True, env=os.environ | {"TMPDIR": str(swap)})
    time.sleep(chance.random() * LONGEST_MOMENT_SECONDS)
    pid = victim(supervisor.pid, whom)
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pid = None
    if not pid or whom in ("child", "agent"):
        supervisor.terminate()  # a child's end is the program's business, which goes on
    # It ends with the last of its processes.
    code = harness.wait_for(supervisor, PATIENCE_SECONDS + WORK_SECONDS)
    left = ["the supervisor, which does not end"] if code is None else []
    left += [line for line in (directory / "output").read_text(errors="replace").splitlines() if is_wrong_byte(line)]
    wait_until_nothing(programs, WORK_SECONDS)
    left += wait_until_nothing(lambda: left_behind(swap, loops, shared))
    harness.end_descendants()
    return whom, pid, " ".join(command), left


def kill_many(directory, kills, seed):
    chance = random.Random(seed)
    swap = directory / "swap"
    swap.mkdir()
    count = dict.fromkeys(["program", "supervisor", "child", *OURS], 0)
    for number in range(1, kills + 1):
        harness.Turn.take()
        whom, pid, command, left = one_kill(directory, swap, chance, number)
        count[whom] += pid is not None
        if left:
            print(f"FAILED at kill {number}, of the {whom} ({pid}); seed {seed}: {command}")
            print("".join(f"left behind: {what}\n" for what in left), end="")
            print((directory / "output").read_text(errors="replace")[-2000:])
            return 1
        if number % 500 == 0:
            print(f"{number} kills", flush=True)
    print(f"kills: {kills} runs, killed: {count}; nothing left behind; seed {seed}")
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=int(os.environ.get("KILLS", 10000)))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    with harness.own_directory("kills") as directory:
        for name in ("soak", "storm"):
            harness.compile_program(HERE / "programs" / f"{name}.c", directory)
        return kill_many(directory, arguments.kills, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
