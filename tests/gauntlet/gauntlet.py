#!/usr/bin/env python3
"""Other people's programs and test suites, plain and under `overspill run`, compared.

    gauntlet.py [--quick] [--fresh] [--only WAY] [SUITE...]

Each file of suites/ is a suite. Results are kept as JSON below target/gauntlet/results, step by step: a
run that was stopped goes on where it was, and a step is run again only if Overspill, or the program, has
changed. `docs/compatibility.md` is written from them and from explained.toml when all suites have run, or by
`--report`. The exit status is 1 if there is a difference that nobody has explained.
"""

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import debian
import harness
import report
from harness import ROOT_C, USER_UTF8, WORK

HERE = Path(__file__).resolve().parent
LIMITS = ("quarter", "32M")


def load_suites(names):
    known = sorted(path.stem for path in (HERE / "suites").glob("*.py"))
    unknown = set(names) - set(known)
    if unknown:
        sys.exit(f"no such suite: {' '.join(sorted(unknown))}; there are {' '.join(known)}")
    return {name: importlib.import_module(f"suites.{name}") for name in names or known}


def settings_of(suite, quick):
    wanted = getattr(suite, "SETTINGS", (ROOT_C, USER_UTF8))
    if os.geteuid() != 0:
        wanted = [setting for setting in wanted if setting.user == "user"]
    return wanted[:1] if quick else wanted


def limits_of(suite, quick):
    """A suite may want to be attached to, too; for which it takes root."""
    wanted = (*LIMITS, harness.ATTACHED) if getattr(suite, "ATTACHED", False) and os.geteuid() == 0 else LIMITS
    return wanted[:1] if quick else wanted


class Results:
    """What is known of one suite, in a file that is never half written."""

    def __init__(self, name, quick):
        self.path = WORK / ("quick" if quick else "results") / f"{name}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.table = json.loads(self.path.read_text()) if self.path.exists() else {}

    def start(self, version, what, build):
        if self.table.get("version") != version:
            self.table = {"version": version, "ways": {}}
        self.table["what"] = what
        for way in self.table["ways"].values():
            if way["limit"] is not None and way["build"] != build:
                way["steps"] = {}
            way["build"] = build
        self.save()

    def steps(self, limit, setting, build):
        new = {"limit": limit, "user": setting.user, "locale": setting.locale, "build": build, "steps": {}}
        return self.table["ways"].setdefault(f"{limit or 'plain'}, {setting}", new)["steps"]

    def save(self):
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.table, indent=1))
        partial.rename(self.path)


def prepare(name, suite):
    debian.install(suite.PACKAGES)
    version = suite.version()
    stamp = WORK / name / "prepared"
    if not stamp.exists() or stamp.read_text() != version:
        tree = WORK / name / "tree"
        subprocess.run(["rm", "-rf", tree], check=True)
        tree.mkdir(parents=True)
        harness.Turn.take()
        getattr(suite, "prepare", lambda tree: None)(tree)
        stamp.write_text(version)
    return version


def run_way(name, steps, limit, setting, results, build):
    """Runs the steps of a suite that have not been run yet."""
    known = results.steps(limit, setting, build)
    plain = results.steps(None, setting, build)
    due = [step for step in steps if step.name not in known
           and (limit is None or step.name in plain)]
    if not due:
        return
    with harness.scratch_copy(name, setting) as scratch:
        for step in due:
            known[step.name] = harness.run_step(name, step, limit, setting, scratch, plain.get(step.name))
            results.save()
            seconds = known[step.name]["seconds"]
            different = report.differences_of_step(step.name, plain[step.name], known[step.name])
            print(f"{name:10} {limit or 'plain':8} {str(setting):14} {step.name:30} {seconds:7.1f} s", flush=True)
            for case, before, after in different:
                print(f"{'':12}{case}: {before} -> {after}", flush=True)


def run_suite(name, suite, quick, only, build):
    results = Results(name, quick)
    version = prepare(name, suite)
    results.start(version, suite.WHAT, build)
    steps = [step for step in suite.steps(WORK / name / "tree") if step.quick or not quick]
    for setting in settings_of(suite, quick):
        for limit in (None, *limits_of(suite, quick)):
            if re.search(only, f"{limit or 'plain'}, {setting}"):
                run_way(name, steps, limit, setting, results, build)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a small part, as root in the locale C, in a quarter")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results of these suites")
    parser.add_argument("--only", default="", help="run ways that match, as in 'plain|32M, root'")
    parser.add_argument("--report", action="store_true", help="run nothing, only compare and write")
    parser.add_argument("suites", nargs="*")
    arguments = parser.parse_args()
    suites = load_suites(arguments.suites)
    harness.become_subreaper()
    build = harness.build_id()
    skipped = {}
    with harness.userfaultfd_for_users():
        for name, suite in suites.items() if not arguments.report else ():
            if arguments.fresh:
                Results(name, arguments.quick).path.unlink(missing_ok=True)
            if arguments.quick and not getattr(suite, "QUICK", True):
                continue
            try:
                run_suite(name, suite, arguments.quick, arguments.only, build)
            except debian.Unavailable as reason:
                print(f"{name}: skipped: {reason}", flush=True)
                skipped[name] = str(reason)
    writes = arguments.report or not (arguments.quick or arguments.suites or arguments.only)
    sys.exit(report.conclude(WORK / ("quick" if arguments.quick else "results"), list(suites),
                             harness.ROOT / "docs" / "compatibility.md" if writes else None))


if __name__ == "__main__":
    main()
