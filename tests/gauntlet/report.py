"""Compares the ways of each suite with its plain way, and writes docs/compatibility.md."""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXPLAINED = HERE / "explained.toml"
GOOD = re.compile("passed|output")
NOT_REACHED = "not reached"
NOT_RUN = "not run"


@dataclass
class Difference:
    suite: str
    way: str
    case: str
    before: str
    after: str
    why: str | None = None


def differences_of_step(step, plain, other):
    """(case, plain outcome, other outcome) where they are not the same. Cases that a step which did not
    end could not reach are counted, not listed."""
    before, after = plain["cases"], other["cases"]
    missing = sorted(set(before) - set(after))
    found = [(f"{step}: {case}", before.get(case, "nothing"), outcome)
             for case, outcome in after.items() if before.get(case) != outcome]
    if missing:
        found.append((f"{step}: {missing[0]}" + f" and {len(missing) - 1} more" * (len(missing) > 1),
                      before[missing[0]], NOT_REACHED))
    return found


def load_explanations():
    with open(EXPLAINED, "rb") as file:
        return tomllib.load(file).get("difference", [])


def explain(difference, explanations):
    """The first explanation that matches: each names a suite, and regular expressions for cases and ways."""
    for entry in explanations:
        if (re.fullmatch(entry["suite"], difference.suite) and re.search(entry["case"], difference.case)
                and re.search(entry.get("way", ""), difference.way)):
            return entry["why"]
    return None


def differences_of_way(plain, steps):
    """As above, for all steps. One that was run plain only is a difference: nothing is known of it."""
    for step, record in plain.items():
        if step in steps:
            yield from differences_of_step(step, record, steps[step])
        else:
            yield step, "run", NOT_RUN


def compare(name, table, explanations):
    """The differences of each way that is not plain."""
    found = {}
    for title, way in table["ways"].items():
        if way["limit"] is None or not way["steps"]:
            continue
        plain = table["ways"][f"plain, {way['user']}, {way['locale']}"]["steps"]
        found[title] = [Difference(name, title, *values) for values in differences_of_way(plain, way["steps"])]
        for difference in found[title]:
            difference.why = explain(difference, explanations)
    return found


def counted(number, noun):
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def mib(kib):
    return f"{kib / 1024:.0f}"


def limits_of(steps):
    limits = sorted({record["limit_mib"] for record in steps.values()})
    return "-" if None in limits else f"{limits[0]}" if len(limits) == 1 else f"{limits[0]} to {limits[-1]}"


def row_of_way(title, way, found):
    steps = way["steps"]
    cases = [outcome for record in steps.values() for outcome in record["cases"].values()]
    good = sum(1 for outcome in cases if GOOD.match(outcome))
    skipped = sum(1 for outcome in cases if outcome == "skipped")
    swapped = sum(record.get("pages_out") or 0 for record in steps.values())
    lost = [record.get("pages_lost") for record in steps.values()]
    return [title, limits_of(steps), str(good), str(skipped), str(len(cases) - good - skipped),
            str(len(found)), f"{sum(record['seconds'] for record in steps.values()):.0f}",
            mib(max((record["peak_kib"] for record in steps.values()), default=0)),
            "-" if way["limit"] is None else str(swapped),
            "-" if way["limit"] is None else "?" if None in lost else str(sum(lost))]


def table_of(rows):
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


HEAD = ["way", "limit, MiB", "passed", "skipped", "failed", "different", "seconds", "peak, MiB", "pages out", "lost"]


def grouped(found):
    """Differences by explanation, then in words, each with the ways that show it."""
    table = {}
    for one in (one for differences in found.values() for one in differences):
        after = "another output" if one.after.startswith("output") else one.after
        before = "" if one.after.startswith("output") else f"{one.before} → "
        table.setdefault(one.why, {}).setdefault(f"{one.case}: {before}{after}", []).append(one.way)
    return table


def section(name, table, found):
    lines = [f"\n## {name}\n\n{table['version']}; {table['what']}.\n\n"]
    lines.append(table_of([HEAD] + [row_of_way(title, way, found.get(title, []))
                                    for title, way in table["ways"].items() if way["steps"]]))
    for why, differences in grouped(found).items():
        lines.append(f"\n{why or '**Not explained:**'}\n\n")
        lines += [f"* {what} ({'; '.join(ways)})\n" for what, ways in differences.items()]
    return "".join(lines)


PREFACE = """\
# Compatibility

<!-- Written by `make gauntlet` from its results and tests/gauntlet/explained.toml. -->

Programs and test suites of others, run plain and under `overspill run`, and compared case by case. A *case* is
what a suite calls one, or the way a command ended, or its output. A suite runs as root in the locale C,
or as an ordinary user in C.UTF-8: its table says how it was
run. *Attached* is the program started without Overspill, and put into the limit and let go again at random moments as long as it
runs. The limit is a quarter of what all processes of the plain run take together (4 MiB at least), or 32 MiB. A case that fails
plain as well counts as failed, not as different. `make gauntlet` writes this page; `make gauntlet SUITES="bash perl"` runs some suites.
"""


def conclude(directory, names, page):
    """Prints what is not explained, writes the page, and returns the exit status."""
    explanations = load_explanations()
    sections, unexplained, summary = [], 0, [["suite", "version", "cases", "different", "not explained"]]
    tables = {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}
    for name, table in tables.items():
        found = compare(name, table, explanations)
        everything = [one for differences in found.values() for one in differences]
        open_ones = [one for one in everything if one.why is None]
        cases = sum(len(record["cases"]) for title in found for record in table["ways"][title]["steps"].values())
        summary.append([name, table["version"], str(cases), str(len(everything)), str(len(open_ones))])
        sections.append(section(name, table, found))
        if name in names:
            unexplained += len(open_ones)
            for one in open_ones:
                print(f"not explained: {one.suite}: {one.way}: {one.case}: {one.before} -> {one.after}")
    if page:
        page.write_text(PREFACE + "\n" + table_of(summary) + "".join(sections))
    cases = sum(int(row[2]) for row in summary[1:] if row[0] in names)
    print(f"gauntlet: {counted(cases, 'case')}, {counted(unexplained, 'difference')} not explained")
    return 1 if unexplained else 0
