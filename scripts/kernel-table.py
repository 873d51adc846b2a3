#!/usr/bin/env python3
"""A table of the kernel's rules: kernel-table.py OUTPUT...

Each OUTPUT, named output-VERSION, is what scripts/kernels.sh kept of one kernel: its release, and what the tests
printed with --show-output. Prints a page in Markdown: rules by kernels, what was skipped and why, what was counted.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

HEAD = """# The kernel's rules, by kernel

What a pager outside a program needs the kernel to do, as `tests/kernel-rules` has it, on Debian's kernels in emulated
machines. `ok`: the kernel does what the rule says for its version. `make kernel-rules` tries the kernel at hand.

Made by `make kernels KERNELS="{versions}"`.
"""


def read(path):
    """The release, result by rule, and remarks as (rule, kind, text)."""
    release, results, remarks, current = path.name, {}, [], None
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        if match := re.fullmatch(r"kernel (\S+)", line):
            release = match[1].removesuffix("-amd64")
        elif match := re.fullmatch(r"test (\S+) \.\.\. (ok|FAILED)", line):
            results[match[1]] = match[2]
        elif match := re.fullmatch(r"---- (\S+) stdout ----", line):
            current = match[1]
        elif match := re.fullmatch(r"(skipped|found): (.*)", line):
            remarks.append((current, match[1], match[2]))
    for rule, kind, _ in remarks:
        if kind == "skipped" and results.get(rule) == "ok":
            results[rule] = "skipped"
    return release, results, remarks


def words(rule):
    """A test's name as a sentence; between digits an underscore is a version's point."""
    group, name = rule.split("::", 1)
    return f"{group}: " + re.sub(r"(?<=\d)_(?=\d)", ".", name).replace("_", " ")


def print_table(columns):
    print("| rule | " + " | ".join(release for release, _, _ in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for rule in sorted({rule for _, results, _ in columns for rule in results}):
        print(f"| {words(rule)} | " + " | ".join(results.get(rule, "no result") for _, results, _ in columns) + " |")


def print_remarks(columns):
    skipped, found = defaultdict(lambda: defaultdict(int)), defaultdict(list)
    for release, _, remarks in columns:
        for rule, kind, text in remarks:
            if kind == "skipped":
                skipped[text][release] += 1
            else:
                found[rule].append(f"{release}: {text}")
    print("\nSkipped, and how many rules:\n")
    for text, counts in skipped.items():
        print(f"* {text}: " + ", ".join(f"{release} {count}" for release, count in counts.items()))
    print("\nCounted, where a rule leaves open who wins; emulation changes how often:\n")
    for rule in sorted(found):
        print(f"* {words(rule)}")
        print("\n".join(f"  * {line}" for line in found[rule]))


def main():
    paths = [Path(name) for name in sys.argv[1:]]
    columns = [read(path) for path in paths]
    print(HEAD.format(versions=" ".join(path.name.removeprefix("output-") for path in paths)))
    print_table(columns)
    print_remarks(columns)


if __name__ == "__main__":
    main()
