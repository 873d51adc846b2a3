#!/usr/bin/env python3
"""A table of the kernel's rules: kernel-table.py OUTPUT...

Each OUTPUT is what scripts/kernels.sh kept of one kernel: its release, and what the tests printed with --show-output.
Prints rules by kernels in Markdown, then what was skipped and what was found.
"""

import re
import sys
from pathlib import Path


def read(path):
    """The release, result by rule, and remarks as pairs of rule and text."""
    release, results, remarks, current = Path(path).name, {}, [], None
    for line in Path(path).read_text(errors="replace").splitlines() if Path(path).exists() else []:
        if match := re.fullmatch(r"kernel (\S+)", line):
            release = match[1]
        elif match := re.fullmatch(r"test (\S+) \.\.\. (ok|FAILED)", line):
            results[match[1]] = match[2]
        elif match := re.fullmatch(r"---- (\S+) stdout ----", line):
            current = match[1]
        elif match := re.fullmatch(r"(skipped|found): (.*)", line):
            remarks.append((current, line))
    for rule in {rule for rule, text in remarks if text.startswith("skipped: ") and results.get(rule) == "ok"}:
        results[rule] = "skipped"
    return release, results, remarks


def main():
    columns = [read(path) for path in sys.argv[1:]]
    rules = sorted({rule for _, results, _ in columns for rule in results})
    print("| rule | " + " | ".join(release for release, _, _ in columns) + " |")
    print("|---|" + "---|" * len(columns))
    for rule in rules:
        name = rule.replace("::", ": ").replace("_", " ")
        print(f"| {name} | " + " | ".join(results.get(rule, "no result") for _, results, _ in columns) + " |")
    for rule in rules:
        said = [(release, text) for release, _, remarks in columns for named, text in remarks if named == rule]
        if said:
            print(f"\n* {rule.split('::')[1].replace('_', ' ')}")
            print("\n".join(f"  * {release}: {text}" for release, text in said))


if __name__ == "__main__":
    main()
