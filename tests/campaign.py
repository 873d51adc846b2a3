#!/usr/bin/env python3
"""Long tests, in turns, until one fails or time is up; what was done is kept in a ledger.

    campaign.py [--minutes N] [--ledger] [PART...]

Each turn goes to the part that has had least time so far. Parts with seeds go on after the last seed of the ledger,
whatever the commit was; parts with names do those that have not passed at this commit. A line of the ledger
(target/campaign/ledger.jsonl) has commit, part, seed or name, result, seconds and the time of its end. Exit status 1 at
the first failure, whose output is kept beside the ledger. --ledger runs nothing, and prints what there is.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "campaign"
LEDGER = WORK / "ledger.jsonl"
# Seeds that one turn of a part takes.
EPISODES, KERNEL_EPISODES, SCHEDULES, KILLS, STORMS = 2000, 500, 5000, 500, 20
SOAK_MINUTES = FUZZ_MINUTES = 5
CHECKED = {"CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS": "true", "CARGO_TARGET_DIR": str(TARGET / "checked")}


def seeded(script, *options):
    """A part that runs one of the gauntlet's scripts with a seed."""
    return lambda seed: ([ROOT / "tests/gauntlet" / script, *options, "--seed", str(seed)], {}, 1)


def storms(seed):
    return [ROOT / "tests/gauntlet/storm.py", "--first", str(seed), "--seeds", str(STORMS)], {}, STORMS


def episodes(package, count, *tests):
    """A part that plays episodes from a seed on."""
    command = ["cargo", "test", "-q", "--release", "-p", package, *tests]
    return lambda seed: (command, CHECKED | {"OVERSPILL_SEED": str(seed), "OVERSPILL_SEEDS": str(count)}, count)


def schedules(seed):
    command = ["cargo", "run", "-q", "--release", "-p", "overspill-lab", "--", "sim", "explore"]
    return [*command, "--seed", str(seed), "--runs", str(SCHEDULES)], CHECKED, SCHEDULES


def fuzz(seed):
    del seed  # the fuzzer draws its own, and says which at a failure
    return ["make", "-C", str(ROOT), "fuzz"], {"FUZZ_MINUTES": str(FUZZ_MINUTES)}, 1


SEEDED = {
    "soak": seeded("soak.py", "--minutes", str(SOAK_MINUTES)),
    "storm": storms,
    "kills": seeded("kills.py", "--kills", str(KILLS)),
    "armings": seeded("armings.py"),
    "faults": episodes("overspill-engine", EPISODES, "--test", "faults"),
    "kernel": episodes("overspill", KERNEL_EPISODES, "--test", "kernel"),
    "guests": episodes("overspill-keeper", EPISODES, "--lib", "episodes"),
    "explore": schedules,
    "fuzz": fuzz,
}


def stems(directory, pattern):
    return sorted(path.stem for path in (ROOT / directory).glob(pattern))


# Versions of which each is booted; see scripts/kernels.sh.
KERNELS = ["6.1", "6.12", "6.18", "7.3"]
# Each with its names, and the command for one.
NAMED = {
    "mutants": (stems("tests/mutants", "*.patch"), lambda name: [ROOT / "tests/mutants/run.sh", name]),
    "gauntlet": (stems("tests/gauntlet/suites", "*.py"), lambda name: [ROOT / "tests/gauntlet/gauntlet.py", name]),
    "kernels": (KERNELS, lambda name: ["make", "-C", str(ROOT), "kernels", f"KERNELS={name}"]),
}
PARTS = [*SEEDED, *NAMED]


def commit():
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    # The gauntlet writes its report.
    changes = git("diff", "HEAD", "--", ".", ":!docs/compatibility.md")
    own = "+" + hashlib.sha256(changes.encode()).hexdigest()[:6] if changes else ""
    return git("rev-parse", "--short", "HEAD") + own


def read_ledger():
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


def next_turn(part, ledger, at):
    """What is due in a part: seed or name, command, environment and the number of seeds; none if all is done."""
    mine = [line for line in ledger if line["part"] == part]
    if part in SEEDED:
        seed = max((line["seed"] + line["seeds"] for line in mine), default=1)
        command, environment, seeds = SEEDED[part](seed)
        return {"seed": seed, "seeds": seeds}, command, environment
    names, command_of = NAMED[part]
    passed = {line["name"] for line in mine if line["commit"] == at and line["result"] == "passed"}
    due = [name for name in names if name not in passed]
    return ({"name": due[0]}, command_of(due[0]), {}) if due else None


def take_turn(part, what, command, environment, at):
    output = WORK / "output"
    started = time.monotonic()
    with open(output, "wb") as log:
        status = subprocess.run(command, cwd=ROOT, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=log,
                                stderr=log).returncode
    line = {"commit": at, "part": part, **what, "result": "passed" if status == 0 else f"failed ({status})",
            "seconds": round(time.monotonic() - started, 1), "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    with open(LEDGER, "a") as ledger:
        ledger.write(json.dumps(line) + "\n")
    words = what.get("name") or f"seed {what['seed']}"
    print(f"{part:9} {words:40} {line['result']:12} {line['seconds']:8.1f} s", flush=True)
    if status != 0:
        kept = output.rename(WORK / f"failed-{part}-{what.get('name', what.get('seed'))}")
        print("".join(f"    {text}\n" for text in kept.read_text(errors="replace").splitlines()[-20:]), end="")
    return line


def print_ledger(ledger):
    print(f"{'commit':15} {'part':9} {'turns':>6} {'failed':>6} {'seconds':>9}")
    table = defaultdict(list)
    for line in ledger:
        table[line["commit"], line["part"]].append(line)
    for (at, part), lines in table.items():
        failed = sum(line["result"] != "passed" for line in lines)
        print(f"{at:15} {part:9} {len(lines):6} {failed:6} {sum(line['seconds'] for line in lines):9.0f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("CAMPAIGN_MINUTES", "inf")))
    parser.add_argument("--ledger", action="store_true")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        sys.exit(f"no such part: {' '.join(sorted(unknown))}; there are {' '.join(PARTS)}")
    WORK.mkdir(parents=True, exist_ok=True)
    ledger = read_ledger()
    if arguments.ledger:
        return print_ledger(ledger)
    at, until, spent = commit(), time.monotonic() + arguments.minutes * 60, defaultdict(float)
    parts = list(arguments.parts or PARTS)
    while parts and time.monotonic() < until:
        part = min(parts, key=lambda part: spent[part])
        due = next_turn(part, ledger, at)
        if due is None:
            parts.remove(part)
            continue
        line = take_turn(part, *due, at)
        ledger.append(line)
        spent[part] += line["seconds"]
        if line["result"] != "passed":
            sys.exit(1)
    print_ledger(line for line in ledger if line["commit"] == at)


if __name__ == "__main__":
    main()
