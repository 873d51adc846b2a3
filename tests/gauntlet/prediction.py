#!/usr/bin/env python3
"""Measures how right a run's summary is about other limits: ten programs, each at five.

    make program && tests/gauntlet/prediction.py [--markdown FILE] [--svg FILE] [PROGRAM...]
    make program && tests/gauntlet/prediction.py --totals [--busy] [PROGRAM...]

Each program runs without a limit that matters, at 40 % of what it has then, and at 50 to 90 %. From the
run at 40 % alone the others are predicted. Prints for each the time that threads waited for pages, as a
part of what they waited at 40 %, predicted and measured; and what the run says is enough, of what the
program has. Takes a quarter of an hour, Python, and what PROGRAMS names; what is not there is left out,
with a line. The picture needs python3-matplotlib.

With --totals it measures how right the time is that a run says it has waited: without that the run at 40 % has taken as
long as one takes at what it says is enough. With --busy two programs that only compute run beside, on both of two CPUs.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

OVERSPILL = pathlib.Path(os.environ.get("OVERSPILL", pathlib.Path(__file__).parents[2] / "target/quick/overspill"))
BASE, PARTS = 0.4, (0.5, 0.6, 0.7, 0.8, 0.9)
SWAP = "compressed:2G"

FILES = {
    "query.sql": """
        pragma cache_size = -400000;
        create table t (a integer primary key, b integer, c text);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 600000)
            insert into t select i, abs(random()) % 1000000, hex(randomblob(20)) from n;
        create index of_b on t(b);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
            select sum(length(t.c)) from n join t on t.a = 1 + (n.i * 7919) % 600000;
        """,
    "skewed.py": """
import random
random.seed(2)
numbers = {random.getrandbits(40): n for n in range(600000)}
keys = list(numbers)
print(sum(numbers[keys[int(len(keys) * random.random() ** 3)]] for _ in range(200000)))
""",
    "phases.py": """
import array
kept, total = array.array("q", range(6_000_000)), 0
for _ in range(6):
    passing = array.array("q", range(4_000_000))
    total += sum(passing[::512]) + sum(kept[::512])
    del passing
print(total)
""",
    "tree.js": """
let x = 12345, root = null, sum = 0;
const next = () => (x = (x * 1103515245 + 12345) & 0x7fffffff);
const enter = (k) => {
  const node = { k, l: null, r: null, v: 'v' + k };
  if (!root) { root = node; return; }
  for (let at = root; ;) {
    const side = k < at.k ? 'l' : 'r';
    if (!at[side]) { at[side] = node; return; }
    at = at[side];
  }
};
for (let i = 0; i < 400000; i++) enter(next());
for (let i = 0; i < 60000; i++) {
  const k = next();
  for (let at = root; at; at = k < at.k ? at.l : at.r) sum += at.v.length;
}
console.log(sum);
""",
    "Map.java": """
import java.util.HashMap;
import java.util.Random;
class Map {
    public static void main(String[] words) {
        Random random = new Random(1);
        HashMap<Long, String> map = new HashMap<>();
        for (int i = 0; i < 600000; i++) map.put(random.nextLong() % 2000000L, "s" + i);
        long sum = 0;
        for (int i = 0; i < 300000; i++) sum += map.getOrDefault(random.nextLong() % 2000000L, "").length();
        System.out.println(sum);
    }
}
""",
    "tree.go": """
package main
import ("fmt"; "math/rand")
type node struct { k int; l, r *node; rest [40]byte }
func main() {
	random := rand.New(rand.NewSource(1))
	var root *node
	for i := 0; i < 800000; i++ {
		k, at := random.Int(), &root
		for *at != nil { if k < (*at).k { at = &(*at).l } else { at = &(*at).r } }
		*at = &node{k: k}
	}
	steps := 0
	for i := 0; i < 20000; i++ {
		for k, at := random.Int(), root; at != nil; steps++ { if k < at.k { at = at.l } else { at = at.r } }
	}
	fmt.Println(steps)
}
""",
    "hash.pl": """
srand(3);
my %h;
$h{int(rand(1e9))} = $_ for 1 .. 500000;
my $s = 0;
my $n = 0;
for my $k (sort { $a <=> $b } keys %h) { $s += $h{$k}; last if ++$n > 20000; }
print "$s\\n";
""",
    "product.c": """
#include <stdio.h>
#include <stdlib.h>
enum { N = 2000, BLOCK = 100 };
int main(void) {
    double *a = malloc(8L * N * N), *b = malloc(8L * N * N), *c = calloc(8L * N, N), sum = 0;
    for (long i = 0; i < (long)N * N; i++) { a[i] = i % 7 + 1; b[i] = i % 5 + 1; }
    for (int kk = 0; kk < N; kk += BLOCK)
        for (int i = 0; i < N; i++)
            for (int k = kk; k < kk + BLOCK; k++)
                for (int j = 0; j < N; j++)
                    c[(long)i * N + j] += a[(long)i * N + k] * b[(long)k * N + j];
    for (long i = 0; i < (long)N * N; i++) sum += c[i];
    printf("%g\\n", sum);
}
""",
}

# Name: the program, how it is prepared, how it runs.
PROGRAMS = {
    "sort": ("sort", None, "sort -S 200M --parallel=1 lines -o sorted"),
    "sqlite": ("sqlite3", None, "sqlite3 :memory: <query.sql"),
    "skewed dict": ("python3", None, "python3 skewed.py"),
    "phases": ("python3", None, "python3 phases.py"),
    "V8, a tree": ("node", None, "node tree.js"),
    "JVM, a map": ("javac", "javac Map.java", "java -Xmx200m -XX:+UseSerialGC Map"),
    "Go, a tree": ("go", "go build -o tree tree.go", "./tree"),
    "perl, a hash": ("perl", None, "perl hash.pl"),
    "gcc": ("gcc", None, "gcc -O1 -c large.c -o large.o"),
    "matrices": ("gcc", "gcc -O2 -o product product.c", "./product"),
}


def write_files():
    import random

    random.seed(1)
    for name, text in FILES.items():
        pathlib.Path(name).write_text(text)
    with open("lines", "w") as lines:
        lines.writelines(f"{random.getrandbits(50):016d} {n}\n" for n in range(1_200_000))
    with open("large.c", "w") as large:
        for n in range(1800):
            cases = "".join(f"case {c}: return a[{c}] * {c + 3} + f{max(0, n - 1 - c)}(x - 1);" for c in range(7))
            body = f"int a[16]; for (int i = 0; i < 16; i++) a[i] = x * i + {n}; switch (x & 7) {{ {cases} }} return a[x & 15];"
            large.write(f"int f{n}(int x) {{ {body} }}\n")


def run(command, memory):
    words = [OVERSPILL, "run", "--quiet", "--memory", str(memory), "--swap", SWAP, "--stats", "stats", "--", "sh", "-c", "exec " + command]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return json.loads(pathlib.Path("stats").read_text())


def part_left(base, memory):
    """What part of the pages that came back would still do so."""
    left = base["summary"]["refaults_left"] or [(0, 1)]
    more = memory - base["memory_bytes"]
    return [pages for at, pages in left if at <= more][-1] / left[0][1]


def prepared(name):
    needs, prepare, command = PROGRAMS[name]
    if not shutil.which(needs):
        print(f"{name}: left out, there is no {needs}", file=sys.stderr)
        return None
    if prepare:
        subprocess.run(prepare, shell=True, check=True, env=os.environ | {"GO111MODULE": "off"})
    return command


def total(name):
    """A row, and by how many times the time without waiting is other than it is with enough."""
    command = prepared(name)
    if not command:
        return None
    base = run(command, int(run(command, "6G")["in_use_bytes_max"] * BASE))
    wall, waited = base["wall_seconds"], base["stall_some_seconds"]
    measured = statistics.median(run(command, base["enough_bytes"])["wall_seconds"] for _ in range(3))
    times = (wall - waited) / measured
    row = f"| {name} | {wall:.2f} s | {waited / wall:.0%} | {wall - waited:.2f} s | {measured:.2f} s | {times:.2f} |"
    print(row, flush=True)
    return times


def totals(names, busy):
    print("| program | at 40 % | waits | without that | with *enough* | times |\n|---|---|---|---|---|---|")
    beside = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2 if busy else 0)]
    try:
        found = sorted(max(times, 1 / times) for times in map(total, names) if times)
    finally:
        for process in beside:
            process.kill()
            process.wait()
    within = sum(times <= 1.5 for times in found)
    print(f"{within} of {len(found)} within 1.5; median {statistics.median(found):.2f}, largest {found[-1]:.2f}")


def measure(name):
    command = prepared(name)
    if not command:
        return None
    free = run(command, "6G")
    most = free["in_use_bytes_max"]
    base = run(command, int(most * BASE))
    rows = []
    for part in PARTS:
        memory = int(most * part)
        rows.append((part_left(base, memory), run(command, memory)["waited_seconds"] / base["waited_seconds"]))
    half = base.get("half_wait_bytes")
    halved = run(command, half)["waited_seconds"] / base["waited_seconds"] if half else None
    result = {
        "name": name, "most": most, "free_seconds": free["wall_seconds"], "seconds": base["wall_seconds"], "rows": rows,
        "enough": base["enough_bytes"] / most, "swapped": run(command, base["enough_bytes"])["summary"]["pages_out"],
        "halved": halved,
    }
    print(line_of(result), flush=True)
    return result


def line_of(result):
    pairs = " | ".join(f"{predicted:.2f} {measured:.2f}" for predicted, measured in result["rows"])
    halved = "-" if result["halved"] is None else f"{result['halved']:.2f}"
    times = f"{result['free_seconds']:.1f} s | {result['seconds']:.1f} s"
    return f"| {result['name']} | {result['most'] >> 20} MiB | {times} | {pairs} | {halved} | {result['enough']:.2f} | {result['swapped']} |"


def table(results):
    limits = " | ".join(f"{part:.0%}".replace("%", " %") for part in PARTS)
    head = f"| program | has | takes | at 40 % | {limits} | at *half* | *enough* is | pages out then |"
    yield from [head, "|" + "---|" * (head.count("|") - 1)]
    yield from map(line_of, results)


def draw(results, path):
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.5, 5.5))
    axes.fill_between([0, 1], [-0.2, 0.8], [0.2, 1.2], color="#dddddd", label="within 0.2")
    axes.plot([0, 1], [0, 1], color="#888888", linewidth=1)
    for n, result in enumerate(results):
        axes.plot(*zip(*result["rows"]), "o^sDvPX*<>h"[n % 11], label=result["name"], markersize=6)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted from the run at 40 %", ylabel="measured", title="Waiting that is left with more memory")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--svg", type=pathlib.Path)
    parser.add_argument("--totals", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    args = parser.parse_args()
    outputs = [path and path.absolute() for path in (args.markdown, args.svg)]
    with tempfile.TemporaryDirectory(prefix="overspill-prediction-") as work:
        os.chdir(work)
        write_files()
        if args.totals:
            return totals(args.programs, args.busy)
        results = [result for result in map(measure, args.programs) if result]
        os.chdir("/")
    errors = sorted(abs(predicted - measured) for result in results for predicted, measured in result["rows"])
    within = sum(error <= 0.2 for error in errors)
    print(f"{within} of {len(errors)} within 0.2; median {errors[len(errors) // 2]:.2f}, largest {errors[-1]:.2f}")
    if outputs[0]:
        outputs[0].write_text("\n".join(table(results)) + "\n")
    if outputs[1]:
        draw(results, outputs[1])


if __name__ == "__main__":
    main()
