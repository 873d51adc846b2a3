#!/usr/bin/env python3
"""Measures what it changes to tell runtimes of the limit: Go, the JVM and V8 at a half and a quarter of what they have.

    make program && tests/gauntlet/runtimes.py

Each program keeps some tens of MiB and makes much garbage. It runs in turns, untold and told, and Go with GOMEMLIMIT at the
limit, which `overspill run` does not set. Prints medians of five rounds. Takes ten minutes, go, a JDK and node.
"""

import json
import os
import pathlib
import statistics
import subprocess
import tempfile

OVERSPILL = pathlib.Path(os.environ.get("OVERSPILL", pathlib.Path(__file__).parents[2] / "target/quick/overspill"))
ROUNDS = 5

FILES = {
    "garbage.go": """
package main
import "fmt"
type record struct { a [6]int; s string }
func main() {
	live, sum := make([]*record, 500000), 0
	for i := range live { live[i] = &record{s: fmt.Sprintf("record %d", i)} }
	for i := 0; i < 6000000; i++ {
		r := &record{s: "x"}
		r.a[0] = i
		if i%40 == 0 { live[(i/40*7919)%len(live)] = r }
		sum += r.a[0] & 1
	}
	fmt.Println(sum, len(live))
}
""",
    "garbage.js": """
const n = 300000, live = new Array(n);
for (let i = 0; i < n; i++) live[i] = { a: i, s: 'record ' + i, b: [i, i + 1, i + 2] };
let sum = 0;
for (let i = 0; i < 12000000; i++) {
  const r = { a: i, b: [i, i + 1] };
  if (i % 40 === 0) live[(i / 40 * 7919) % n] = r;
  sum += r.b[1] & 1;
}
console.log(sum, live.length);
""",
    "Garbage.java": """
class Garbage {
    static class Record {
        long a, b, c, d;
        String s;
        Record(int i) { a = i; s = "record " + i; }
    }
    public static void main(String[] words) {
        Record[] live = new Record[500000];
        for (int i = 0; i < live.length; i++) live[i] = new Record(i);
        long sum = 0;
        for (int i = 0; i < 20000000; i++) {
            Record r = new Record(i & 1023);
            if (i % 40 == 0) live[(int) ((i / 40 * 7919L) % live.length)] = r;
            sum += r.a & 1;
        }
        System.out.println(sum + " " + live.length);
    }
}
""",
}


def run(command, memory, tell, environment):
    words = [OVERSPILL, "run", "--quiet", "--memory", str(memory), "--swap", "compressed:4G", f"--tell-runtimes={tell}", "--stats", "stats"]
    subprocess.run([*words, "--", *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | environment)
    return json.loads(pathlib.Path("stats").read_text())


def measure(name, command, memory, ways):
    taken = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, (tell, environment) in ways.items():
            stats = run(command, memory, tell, environment)
            taken[way].append((stats["wall_seconds"], stats["summary"]["pages_out"]))
    middle = [f"{way} {statistics.median(t for t, _ in pairs):.2f} s, {statistics.median(p for _, p in pairs):.0f} pages out" for way, pairs in taken.items()]
    print(f"| {name} | {memory >> 20} MiB | " + " | ".join(middle) + " |", flush=True)


def main():
    with tempfile.TemporaryDirectory(prefix="overspill-runtimes-") as work:
        os.chdir(work)
        for name, text in FILES.items():
            pathlib.Path(name).write_text(text)
        subprocess.run(["go", "build", "-o", "garbage", "garbage.go"], check=True, env=os.environ | {"GO111MODULE": "off"})
        subprocess.run(["javac", "Garbage.java"], check=True)
        for name, command in {"Go": ["./garbage"], "JVM": ["java", "Garbage"], "V8": ["node", "garbage.js"]}.items():
            most = run(command, 8 << 30, "no", {})["in_use_bytes_max"]
            for part in (2, 4):
                limit = {"GOMEMLIMIT": str(most // part)}
                told = {"GOMEMLIMIT": ("no", limit)} if name == "Go" else {"told": ("yes", {})}
                measure(name, command, most // part, {"untold": ("no", {})} | told)
        os.chdir("/")


if __name__ == "__main__":
    main()
