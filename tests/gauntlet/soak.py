#!/usr/bin/env python3
"""Runs programs that check every byte they write, under `overspill run`, until one is wrong or time is up.

    soak.py [--minutes N] [--seed N]

Workloads, devices, limits and threads change from round to round, as the seed says; beside a third of them swap comes and goes. At the first failure it stops and leaves
what is needed to find out why: the command, the seed, statistics, outputs, the last changes of pages' states, and the
machine. SOAK_MINUTES is
the default for minutes (60).
"""

import argparse
import filecmp
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import harness
from harness import HERE, OVERSPILL, ROOT, WORK

SECONDS = 20  # of one round, about; random lines on a slow disk take what they take
IDLE_SECONDS = 120  # with a fifth of a second of CPU time at most: it hangs
ROUND_SECONDS = 3600  # it goes in circles


class Loop:
    """A loop device over a file, or nothing where that is not permitted."""

    def __init__(self, directory):
        self.name = None
        file = directory / "loop"
        subprocess.run(["truncate", "-s", "1G", file], check=True)
        made = subprocess.run(["losetup", "-f", "--show", file], capture_output=True, text=True)
        if made.returncode == 0:
            self.name = made.stdout.strip()
        else:
            print(f"skipped: a block device: {made.stderr.strip()}")

    def close(self):
        if self.name:
            harness.end_descendants()  # they may have it open
            subprocess.run(["losetup", "-d", self.name], check=True)


def build(directory):
    """Compiles the programs; direct_io.c is one of the test programs."""
    for source in (HERE / "programs" / "soak.c", ROOT / "tests/programs/direct_io.c"):
        harness.compile_program(source, directory)


def devices(directory, loop):
    found = ["compressed:2G", "compressed:2G,algo=zstd", "ram:2G", f"file:{directory}:2G",
             f"compressed:64M,pri=9 --swap file:{directory}:2G", "ram:2G,mirror=ram:2G"]
    return [device.split() for device in found + ([f"block:{loop.name} --force"] if loop.name else [])]


def sort_command(directory, chance):
    """Random lines; what plain sort makes of them is what is expected."""
    lines = chance.randrange(1_000_000, 3_000_000)
    with open(directory / "lines", "w") as file:
        for _ in range(lines // 1000):
            file.write("".join("%016x %032x\n" % (chance.getrandbits(64), chance.getrandbits(128))
                               for _ in range(1000)))
    command = ["sort", "-S", "512M", "--parallel=2", "-T", str(directory), str(directory / "lines"), "-o"]
    subprocess.run([*command, directory / "expected"], check=True, env=os.environ | {"LC_ALL": "C"})
    return [*command, str(directory / "sorted")]


def workload(name, directory, chance):
    """The command of one round."""
    numbers = [str(SECONDS), str(chance.randrange(1 << 30))]
    if name == "sort":
        return sort_command(directory, chance)
    if name == "touch":
        return [str(directory / "soak"), "touch", str(chance.randint(1, 8)), str(chance.choice([48, 96, 192])), *numbers]
    if name == "forks":
        return [str(directory / "soak"), "forks", "0", str(chance.choice([24, 64])), *numbers]
    if name == "kills":
        return [str(directory / "soak"), "forks", "1", str(chance.choice([24, 64])), *numbers]
    return [str(directory / "direct_io"), *(["uring"] if name == "io_uring" else [])]


def complaint(name, code, directory):
    """What is wrong with a round, or None."""
    if code is None:
        return "it hangs, or goes in circles"
    if code != 0:
        return f"it ended with {harness.how_it_ended(code)}"
    if name == "sort" and not filecmp.cmp(directory / "expected", directory / "sorted", shallow=False):
        return "the sorted files differ"
    statistics = harness.read_statistics(directory / "statistics.json")
    lost = statistics["pages_lost"]
    return None if lost == 0 else f"pages lost: {'it does not say' if lost is None else lost}"


def tell(directory, reason, number, seed, command):
    """Everything that is needed to find out why."""
    kept = WORK / f"soak-failure-{time.strftime('%Y%m%d-%H%M%S')}"
    shutil.copytree(directory, kept, ignore=shutil.ignore_patterns("loop"))
    (kept / "about.json").write_text(json.dumps({
        "reason": reason, "round": number, "seed": seed, "command": command, "kernel": platform.release(),
        "cpus": os.cpu_count(), "overspill": harness.build_id(), "memory": Path("/proc/meminfo").read_text(),
    }, indent=1))
    print(f"FAILED in round {number}: {reason}")
    print(f"again: {' '.join(command)}")
    print((directory / "output").read_text(errors="replace")[-4000:])
    print(f"kept: {kept}; the same rounds again: soak.py --seed {seed}")


def cpu_seconds():
    """What all processes below us have used, those that were waited for included."""
    ticks = 0
    for pid in harness.descendants(os.getpid()):
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_while_it_works(process):
    """The exit code, or None if it stands still or does not end."""
    started = time.monotonic()
    while time.monotonic() < started + ROUND_SECONDS:
        before = cpu_seconds()
        code = harness.wait_for(process, IDLE_SECONDS)
        if code is not None:
            return code
        # Less than before: a busy process has ended.
        if 0 <= cpu_seconds() - before < 0.2:
            return None
    return None


def read(path):
    try:
        return path.read_text().strip()
    except OSError as reason:
        return str(reason)


def where_it_waits():
    """What each thread below us does in the kernel."""
    lines = []
    for pid in harness.descendants(os.getpid()):
        for task in Path(f"/proc/{pid}/task").glob("*"):
            lines.append(f"{pid} {task.name}: {'; '.join(read(task / what) for what in ('comm', 'wchan', 'syscall'))}")
    return lines


def change_swap(process, directory, places, seed):
    """Adds swap to a run and takes it away until it ends, or no more can be added. One place that holds everything stays."""
    chance = random.Random(seed)
    large = [number for number, place in enumerate(places) if "2G" in place]
    kinds = ["ram:2G", "compressed:2G", f"file:{directory}:2G", f"file:{directory}:2G,pri=7", "ram:2G,mirror=ram:2G"]
    number = len(places)
    while process.poll() is None and (number < len(places) + 8 or len(large) > 1):
        time.sleep(chance.uniform(0, 2))
        if number < len(places) + 8 and (len(large) < 2 or chance.random() < 0.5):
            change = ["--swapon", chance.choice(kinds)]
            large.append(number)
            number += 1
        else:
            change = ["--swapoff", str(large.pop(chance.randrange(len(large))))]
        said = subprocess.run([str(OVERSPILL), "set", str(process.pid), *change], capture_output=True, text=True)
        if said.returncode != 0:
            return print(f"      no {' '.join(change)}: {said.stderr.strip()}", flush=True)


def run(command, directory, changes):
    """The exit code, or None if it had to be ended; `changes` is given the process, on a thread."""
    for name in ("statistics.json", "history", "threads"):
        (directory / name).unlink(missing_ok=True)
    with open(directory / "output", "wb") as output:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                   start_new_session=True, env=os.environ | {"LC_ALL": "C"})
        threading.Thread(target=changes, args=(process,), daemon=True).start()
        code = wait_while_it_works(process)
        if code is None:
            (directory / "threads").write_text("\n".join(where_it_waits()))
            # Gently, so that the history is written.
            process.terminate()
            harness.wait_for(process, SECONDS)
        harness.end_descendants()
    return code


def rounds(directory, places, minutes, seed):
    until = time.monotonic() + minutes * 60
    chance, number = random.Random(seed), 0
    names = ["sort", "touch", "forks", "direct_io", "io_uring", "kills"]
    while time.monotonic() < until:
        name, place = names[number % len(names)], places[(number // len(names) + number) % len(places)]
        number += 1
        limit = chance.choice(["16M", "24M", "32M", "48M"])
        harness.Turn.take()
        swaps = chance.random() < 1 / 3
        if swaps:  # only such kinds may come later as were there at the start
            place = [*place, "--swap", "ram:1M", "--swap", f"file:{directory}:1M"]
        command = [str(OVERSPILL), "run", "--memory", limit, "--swap", *place, "--stats",
                   str(directory / "statistics.json"), "--history", str(directory / "history"), "--",
                   *workload(name, directory, chance)]
        started = time.monotonic()
        areas, changing = [word for word in place if ":" in word], chance.getrandbits(32)
        code = run(command, directory, lambda process: swaps and change_swap(process, directory, areas, changing))
        reason = complaint(name, code, directory)
        swapped = harness.read_statistics(directory / "statistics.json")["pages_out"]
        print(f"{number:5} {name:9} {limit:4} {' '.join(place):40} {time.monotonic() - started:6.1f} s, "
              f"{swapped} pages out", flush=True)
        if reason:
            tell(directory, reason, number, seed, command)
            return 1
    print(f"soak: {number} rounds in {minutes:g} minutes, every byte right; seed {seed}")
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("SOAK_MINUTES", 60)))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    with harness.own_directory("soak") as directory, closing(Loop(directory)) as loop:
        build(directory)
        return rounds(directory, devices(directory, loop), arguments.minutes, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
