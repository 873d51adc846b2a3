#!/usr/bin/env python3
"""Tries 300 command lines, most of them wrong, and checks what Overspill answers: the status, and what it says.

    make program && tests/gauntlet/inputs.py [--table FILE] [--skip ID] [--verbose] [ID...]

Prints for each `id  status  ok|changed|FAIL|skipped  first line`; `changed` are right answers to what was answered
badly when three people tried these inputs first, which `was` of the table tells. Disks and a container are made for
some, which takes root, and removed. What needs something that is not here is skipped, with the reason. Takes five
minutes.
"""

import argparse
import contextlib
import ctypes.util
import dataclasses
import functools
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
OVERSPILL = pathlib.Path(os.environ.get("OVERSPILL", HERE.parents[2] / "target/quick/overspill")).resolve()
COMPANIONS = ("overspill-forks", "overspill-server")
CGROUPS = pathlib.Path("/sys/fs/cgroup")
CONTAINER_MIB = 256
SILENT = None

EAT_C = """
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    long size = 200 << 20, right = 0;
    char *volatile memory = malloc(size);
    for (long at = 0; at < size; at += 4096) memory[at] = at >> 12;
    for (long at = 0; at < size; at += 4096) right += memory[at] == (char)(at >> 12);
    printf("ok %ld\\n", right);
    return 0;
}
"""
EAT_GO = """
package main
import "fmt"
func main() {
	memory, right := make([]byte, 200<<20), 0
	for at := 0; at < len(memory); at += 4096 { memory[at] = byte(at >> 12) }
	for at := 0; at < len(memory); at += 4096 { if memory[at] == byte(at >> 12) { right++ } }
	fmt.Println("ok", right)
}
"""
EAT_PY = """
import sys
memory = bytearray(int(sys.argv[1]) << 20)
for at in range(0, len(memory), 4096): memory[at] = at >> 12 & 255
print("ok", sum(memory[at] == at >> 12 & 255 for at in range(0, len(memory), 4096)))
"""
FILES = {
    "eat.py": EAT_PY,
    "ro/eat.py": EAT_PY,
    "noise.py": """
import os
memory = bytearray()
for _ in range(int(__import__("sys").argv[1])): memory += os.urandom(1 << 20)
print("ok", len(memory) >> 20)
""",
    "random_touches.py": """
import random, sys, time
memory = bytearray(int(sys.argv[1]) << 20)
for at in range(0, len(memory), 4096): memory[at] = 1
print("ready", flush=True)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    for _ in range(1000): memory[random.randrange(len(memory))] ^= 1
""",
    "fork_pool.py": """
import multiprocessing
table = list(range(1_000_000))
with multiprocessing.get_context("fork").Pool(2) as pool:
    print("ok", sum(pool.map(sum, [table[n::4] for n in range(4)])) == sum(table))
""",
    "joblib_sum.py": """
import joblib
parts = joblib.Parallel(n_jobs=2)(joblib.delayed(sum)(range(n, 4_000_000, 4)) for n in range(4))
print("ok", sum(parts) == sum(range(4_000_000)))
""",
    "frame_polars.py": """
import polars
frame = polars.DataFrame({"id": range(2_000_000)}).with_columns(city=polars.col("id") % 7)
print("ok", frame.group_by("city").agg(polars.col("id").mean()).height == 7)
""",
    "frame_pandas.py": """
import pandas
frame = pandas.DataFrame({"id": range(2_000_000)})
print("ok", len(frame.groupby(frame.id % 7).id.mean()) == 7)
""",
    "frame_pyarrow.py": """
import pyarrow, pyarrow.compute
print("ok", pyarrow.compute.sum(pyarrow.array(range(2_000_000))).as_py() == sum(range(2_000_000)))
""",
    "frame_duckdb.py": """
import duckdb
print("ok", duckdb.sql("select sum(i) from range(2000000) t(i)").fetchone()[0] == sum(range(2_000_000)))
""",
    "eat.c": EAT_C,
    "eat.go": EAT_GO,
    "eat_c.go": EAT_GO.replace('import "fmt"', '// #include <stdlib.h>\nimport "C"\nimport "fmt"\nvar _ = C.rand()'),
    "eat.js": """
const blocks = Array.from({ length: 200 }, (_, n) => Buffer.alloc(1 << 20, n));
console.log('ok', blocks.filter((block, n) => block[12345] === n).length);
""",
    "Eat.java": """
class Eat {
    public static void main(String[] words) {
        byte[][] blocks = new byte[200][1 << 20];
        int right = 0;
        for (int n = 0; n < 200; n++) for (int at = 0; at < 1 << 20; at += 4096) blocks[n][at] = (byte) n;
        for (int n = 0; n < 200; n++) if (blocks[n][4096] == (byte) n) right++;
        System.out.println("ok " + right);
    }
}
""",
    "segv.c": "int main(void) { *(volatile int *)8 = 1; return 0; }\n",
    "own.mk": "all: a b c\na b c:\n\toverspill run -q -m 32M -- python eat.py 100\n",
    "under.mk": "all: a b c\na b c:\n\tpython eat.py 30\n",
    "notebook.py": """
import nbclient, nbformat
cell = nbformat.v4.new_code_cell("memory = bytearray(200 << 20); print(len(memory) >> 20)")
book = nbformat.v4.new_notebook(cells=[cell])
print("ok", nbclient.execute(book).cells[0].outputs[0].text == "200\\n")
""",
    "number.toml": "[run]\nmemory = 512\n",
    "misspelt.toml": '[run]\nmemroy = "512M"\n',
    "no-section.toml": 'memory = "512M"\n',
    "unclosed.toml": '[run\nmemory = "512M"\n',
    "swap-word.toml": '[run]\nmemory = "64M"\nswap = "ram:64M"\n',
    "unknown.toml": '[run]\nmemory = "64M"\nstats = "x"\n',
    "d/somefile": "data\n" * 20_000,
    "d/interpreter.sh": "#!/nonexistent/interp\n",
    "d/static.sh": "#!g/cstatic\n",
    "new-crate/Cargo.toml": '[package]\nname = "new-crate"\nversion = "0.1.0"\nedition = "2021"\n',
    "new-crate/src/main.rs": "fn main() {}\n",
    "bin/as-nobody": '#!/bin/sh\nexec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"\n',
    "bin/in-container": '#!/bin/sh\necho $$ >"$CONTAINER/cgroup.procs" && exec "$@"\n',
}
EXECUTABLE = ("d/interpreter.sh", "d/static.sh", "bin/as-nobody", "bin/in-container")
DIRECTORIES = ("d/dir", "d/uni ünïcödé", "g", "alone", "sp ace", "inst/bin", "inst/lib/overspill", "priv", "lmnt",
               "tmnt")
GO = "GO111MODULE=off GOFLAGS= go build -o"
BUILT = {
    "g/cdyn": ("gcc", "gcc -o g/cdyn eat.c"),
    "g/cstatic": ("gcc", "gcc -static -o g/cstatic eat.c"),
    "g/casan": ("gcc", "gcc -fsanitize=address -o g/casan eat.c"),
    "g/segv": ("gcc", "gcc -o g/segv segv.c"),
    "g/musldyn": ("musl-gcc", "musl-gcc -o g/musldyn eat.c"),
    "g/muslstatic": ("musl-gcc", "musl-gcc -static -o g/muslstatic eat.c"),
    "g/gostatic": ("go", f"CGO_ENABLED=0 {GO} g/gostatic eat.go"),
    "g/gopie": ("go", f"{GO} g/gopie -buildmode=pie eat.go"),
    "g/gocgo": ("go", f"CGO_ENABLED=1 {GO} g/gocgo eat_c.go"),
    "g/goext": ("go", f"CGO_ENABLED=1 {GO} g/goext -ldflags=-linkmode=external eat.go"),
    "Eat.class": ("javac", "javac Eat.java"),
}


# What is around a command while it runs: context managers, which get the directory and give environment variables.


@contextlib.contextmanager
def nothing(work):
    yield {}


def loop_device(image):
    return subprocess.run(["losetup", "-f", "--show", image], check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def disk(work, mib=64, mounted=True, full=False, options="rw"):
    """A disk of its own, $LOOP, with ext4, at `lmnt`."""
    with contextlib.ExitStack() as undo:
        image = work / "disk.img"
        undo.callback(image.unlink)
        with open(image, "wb") as file:
            file.truncate(mib << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        device = loop_device(image)
        undo.callback(subprocess.run, ["losetup", "-d", device], check=True)
        if mounted:
            subprocess.run(["mount", "-o", "rw", device, work / "lmnt"], check=True)
            undo.callback(subprocess.run, ["umount", "-l", work / "lmnt"], check=True)
            if full:
                fill(work / "lmnt" / "filler")
            subprocess.run(["mount", "-o", f"remount,{options}", work / "lmnt"], check=True)
        yield {"LOOP": device}


def fill(path):
    with open(path, "wb", buffering=0) as file:
        for chunk in (1 << 16, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(chunk)):
                    pass
        os.fsync(file)


@contextlib.contextmanager
def memory_disk(work):
    """A tmpfs of 16 MiB at `tmnt`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16M", "tmpfs", work / "tmnt"], check=True)
    try:
        yield {}
    finally:
        subprocess.run(["umount", "-l", work / "tmnt"], check=True)


@contextlib.contextmanager
def container(work):
    """A control group with little memory, $CONTAINER, for `in-container`."""
    root, limit = container_kind()
    group = root / f"overspill-inputs-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(CONTAINER_MIB << 20))
        yield {"CONTAINER": str(group)}
    finally:
        remove_group(group)


def container_kind():
    """The directory for new groups, and their file for the limit; None if there is none."""
    if (CGROUPS / "memory" / "memory.limit_in_bytes").exists():
        return CGROUPS / "memory", "memory.limit_in_bytes"
    controlled = CGROUPS / "cgroup.subtree_control"
    if controlled.exists() and "memory" in controlled.read_text().split():
        return CGROUPS, "memory.max"
    return None


def remove_group(group):
    for _ in range(100):
        try:
            return group.rmdir()
        except OSError:
            for process in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            time.sleep(0.1)
    sys.exit(f"{group} cannot be removed")


@contextlib.contextmanager
def going_on(work, stopped=0):
    """A run that goes on, $RUN, or several that are stopped, as by Ctrl-Z."""
    words = ["overspill", "run", "-q", "-m", "32M", "--memory-max", "128M", "--swap", "compressed:1G", "--"]
    program = ["python", "random_touches.py", "100", "120"]
    runs = []
    try:
        for _ in range(stopped or 1):
            run = subprocess.Popen(
                [*words, *program], cwd=work, env=environment(work), stdout=subprocess.PIPE, start_new_session=True
            )
            runs.append(run)
            run.stdout.readline()
            if stopped:
                os.killpg(run.pid, signal.SIGSTOP)
        yield {"RUN": str(runs[0].pid)}
    finally:
        for run in runs:
            end(run)


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        os.killpg(process.pid, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


mounted = functools.partial(disk)
full = functools.partial(disk, full=True)
read_only = functools.partial(disk, options="ro")
middling = functools.partial(disk, mib=600)
unmounted = functools.partial(disk, mounted=False)
stopped = functools.partial(going_on, stopped=1)
three_stopped = functools.partial(going_on, stopped=3)


# What a command may need, by the words in it, by what is around it, and by `needs`.

TOOLS = "busybox cargo docker gdb git go java make node nohup setsid ssh strace su timeout unshare xargs".split()


def lacking(row, work):
    """Why this cannot be tried here, or None."""
    words = set(re.findall(r"[\w./+-]+", row.command))
    for tool in TOOLS:
        if tool in words and not shutil.which(tool):
            return f"there is no {tool}"
    for path, (tool, _) in BUILT.items():
        if path.removesuffix(".class") in words and not (work / path).exists():
            return f"there is no {tool} that makes {path}"
    around = getattr(row.around, "func", row.around)
    as_root = around in (disk, memory_disk, container) or words & {"as-nobody", "unshare"} or "root" in row.needs
    if as_root and os.geteuid():
        return "this takes root"
    if "as-nobody" in words and not shutil.which("setpriv"):
        return "there is no setpriv"
    if around is disk and not (shutil.which("losetup") and pathlib.Path("/dev/loop-control").exists()):
        return "there are no loop devices"
    if around is container and not container_kind():
        return "there is no memory controller"
    for kind, _, name in (need.partition(":") for need in row.needs):
        if kind == "python" and not importlib.util.find_spec(name):
            return f"Python has no {name}"
        if kind == "built" and not (work / name).exists():
            return f"{name} was not built"
    if "jemalloc" in row.needs and not ctypes.util.find_library("jemalloc"):
        return "there is no libjemalloc"
    return None


@dataclasses.dataclass
class Input:
    id: str
    command: str  # for bash, in the directory that is prepared
    status: int
    says: str | tuple | None = ()  # what must be said, or SILENT
    was: str = ""  # what was wrong with the answer, when it was
    never: tuple = ()  # what may not be said
    around: object = nothing
    needs: tuple = ()
    seconds: int = 60


NO_LIMIT = "no limit is given: "
SIZES = "write a number and K, M, G or T (binary multiples), as in 512M"
SWAPS = "write file:PATH[:SIZE], block:PATH, ram:SIZE, compressed:SIZE"
USED = "true: memory 512 MiB"
FULL = "out of memory, "
MADE = 'overspill mkswap --force "$LOOP" >made.txt && '

INPUTS = [
    # No limit, and limits of all sorts.
    Input("b00", "overspill run", 125, "<PROGRAM>..."),
    Input("b01", "overspill run true", 0, (NO_LIMIT, "three quarters of the", "--memory M gives another")),
    Input("b02", "overspill run -- true", 0, (NO_LIMIT, "three quarters of the")),
    Input("b03", "overspill run --memory 512M", 125, "<PROGRAM>..."),
    Input("b04", "overspill run --memory 512M true", 0, USED),
    Input("b05", "overspill run --memory 1 -- true", 125, ("below the working minimum of 4 MiB", "1 byte "),
          was="said `1 bytes`"),
    Input("b06", "overspill run --memory 0 -- true", 125, "below the working minimum of 4 MiB"),
    Input("b07", "overspill run --memory 0% -- true", 125, "bad percentage `0%`: write 1% to 100%, as in 25%"),
    Input("b08", "overspill run --memory -5M -- true", 125, ("bad size `-5M`", SIZES)),
    Input("b08b", "overspill run --memory=-5M -- true", 125, ("bad size `-5M`", SIZES)),
    Input("b09", "overspill run --memory 100% -- true", 0, ("the kernel may end the run", "give at most some"),
          was="accepted without a note"),
    Input("b10", "overspill run --memory 101% -- true", 125, "bad percentage `101%`: write 1% to 100%, as in 25%"),
    Input("b11", "overspill run --memory 100T -- true", 125, "ask for at most 16.0 TiB",
          was="two lines with two different limits", never=("give at most",)),
    Input("b12", "overspill run --memory 99999999999999999999G -- true", 125, "more than can be counted",
          was="asked for a number and G, which it is"),
    Input("b13", "overspill run --memory 512m -- true", 0, USED),
    Input("b14", "overspill run --memory 512MB -- true", 0, USED),
    Input("b15", "overspill run --memory 512mb -- true", 0, USED),
    Input("b16", "overspill run --memory 512X -- true", 125, ("bad size `512X`", SIZES)),
    Input("b17", "overspill run --memory '512 M' -- true", 0, USED),
    Input("b18", "overspill run --memory '' -- true", 125, ("bad size ``", SIZES), never=("--memory ``:",),
          was="said --memory twice, once with empty quotes"),
    Input("b19", "overspill run --memory 1,5G -- true", 125, ("bad size `1,5G`", SIZES)),
    Input("b20", "overspill run --memory 1.5G -- true", 0, "memory 1.5 GiB"),
    Input("b21", "overspill run --memory 1e9 -- true", 0, "memory 953.7 MiB"),
    Input("b22", "overspill run --memory ５１２M -- true", 125, ("bad size `５１２M`", SIZES)),
    Input("b23", "overspill run --memory max -- true", 125, ("bad size `max`", SIZES)),
    Input("b24", "overspill run --mem 512M -- true", 125, "'--mem' found; did you mean `--memory`?"),
    Input("b25", "overspill run -m512M true", 0, USED),
    Input("b26", "overspill run --memroy 512M -- true", 125, "'--memroy' found; did you mean `--memory`?"),
    # Programs and swap that are not there.
    Input("c01", "overspill run --memory 64M -- nosuchprogram", 127,
          "nosuchprogram: no such program: check its name and"),
    Input("c02", "overspill run --memory 64M -- d/dir", 126, "d/dir cannot be executed: Is a directory"),
    Input("c03", "overspill run --memory 64M -- d/somefile", 126, "d/somefile cannot be executed: Permission denied"),
    Input("c04", "overspill run --memory 64M -- ./eat.py", 126, "./eat.py cannot be executed: Permission denied"),
    Input("c05", "overspill run --memory 64M -- ''", 127, "no such program", was="said `: no such program`",
          never=("overspill: : ",)),
    Input("c06", "overspill run --memory 64M --swap foo -- true", 125, ("`foo`", SWAPS)),
    Input("c07", "overspill run --memory 64M --swap file: -- true", 125, "the path is missing"),
    Input("c08", "overspill run --memory 64M --swap /var/tmp -- true", 125, "file:/var/tmp",
          was="said file:PATH, not the path that was given"),
    Input("c09", "overspill run --memory 64M --swap file:/nonexistent -- true", 125, "as in file:/nonexistent:8G"),
    Input("c10", "overspill run --memory 64M --swap file:/nonexistent/x:1G -- true", 125,
          ("cannot create /nonexistent/x", "its directory must exist")),
    Input("c11", "overspill run --memory 64M --swap file:d/somefile -- true", 125,
          ("holds data of unknown kind", "overspill mkswap --force d/somefile")),
    Input("c12", "overspill run --memory 64M --swap file:d/somefile:1G -- true", 125,
          ("holds data of unknown kind", "overspill mkswap --force d/somefile")),
    Input("c13", "overspill run --memory 64M --swap block:/dev/nosuch -- true", 125, "there is no device /dev/nosuch"),
    Input("c14", "overspill run --memory 64M --swap block:/dev/null -- true", 125, "/dev/null is no block device"),
    Input("c15", 'overspill run --memory 64M --swap "block:$LOOP" -- true', 125, "it is mounted", around=mounted),
    Input("c16", "overspill run --memory 64M --swap block:d/dir -- true", 125, "d/dir is no block device"),
    Input("c17", "overspill run --memory 64M --swap block:d/somefile -- true", 125, "d/somefile is no block device"),
    Input("c18", "overspill run --memory 64M --swap ram: -- true", 125, "the size is missing: write ram:SIZE"),
    Input("c19", "overspill run --memory 64M --swap ram -- true", 125, ("`ram`", "ram:SIZE")),
    Input("c20", "overspill run --memory 64M --swap ram:0 -- true", 125,
          "a swap area needs 40 KiB; give it a larger size"),
    Input("c21", "overspill run --memory 64M --swap ram:100T -- true", 125, "ram:100 TiB is more than",
          was="accepted, and cut to 16 TiB"),
    Input("c22", "overspill run --memory 64M --swap compressed:1G,algo=gzip -- true", 125,
          "algo `gzip` is neither lz4 nor zstd"),
    Input("c23", "overspill run --memory 64M --swap zram:1G -- true", 125, ("`zram:1G`", "compressed:SIZE")),
    Input("c24", "overspill run --memory 64M --swap compressed:1G,foo=bar -- true", 125, ("`foo`", "algo=lz4|zstd"),
          was="told options that only other places have", never=("connections=",)),
    Input("c25", "overspill run --memory 64M --swap compressed:1G,pri=abc -- true", 125,
          "priority `abc` is not a number from 0 to 32767"),
    Input("c26", "overspill run --memory 64M --swap nbd:localhost:1/x -- true", 125,
          ("nbd:localhost:1/x", "Connection refused", "start the server")),
    Input("c27", "overspill run --memory 64M --swap nbd:nosuch.example:10809/x -- true", 125,
          ("`nosuch.example` has no address",)),
    Input("c28", "overspill run --memory 64M --swap redis+cluster:localhost:1 -- true", 125,
          ("redis+cluster:localhost:1", "start the servers", "Connection refused")),
    Input("c29", "overspill run --memory 64M --swap nbd+unix:/nosuch.sock -- true", 125,
          ("nbd+unix:/nosuch.sock", "No such file or directory", "start the server")),
    Input("c30", "overspill run --memory 64M --swap file:/proc -- true", 125, "/proc", never=("directory must exist",),
          was="said that the directory must exist, which it does"),
    Input("c31", "overspill run --memory 64M --swap file:/dev/shm -- true", 0,
          "its file system is in memory (tmpfs): name a directory on disk"),
    Input("c32", "overspill run --memory 64M --swap file:tmnt -- python eat.py 200", 125,
          (FULL, "tmnt", "add swap elsewhere"), around=memory_disk),
    Input("c33", "overspill run --memory 64M --swap file:tmnt:1G -- python eat.py 200", 125, (FULL, "file system"),
          was="said `full (at most 1 GiB)` where the disk was full", never=("full (at most 1 GiB)",),
          around=memory_disk),
    Input("c34", "overspill run --memory 64M --swap 'file:d/uni ünïcödé' -- python eat.py 200", 0, "ok 51200"),
    Input("c35", "overspill run --memory 64M --swap 'file:d/with space:1G' -- python eat.py 200", 0, "ok 51200"),
    Input("c36", "overspill run --memory 64M --swap-size 10M -- python eat.py 200", 125,
          (FULL, "/var/tmp is full (at most 10 MiB): raise --swap-size")),
    Input("c37", "overspill run --memory 64M --swap-size 0 -- python eat.py 200", 125, "a swap area needs 40 KiB"),
    Input("c38", "overspill run --memory 64M --swap file:/sys -- true", 125, ("/sys", "Permission denied")),
    # Runs that go on.
    Input("d01", "overspill top", 125, "this is no terminal to show runs on: `overspill stats` prints them once"),
    Input("d02", "overspill top --delay 0", 125, "--delay: give 0.1 to 60 seconds"),
    Input("d03", "overspill top --delay abc", 125, "--delay `abc`: give 0.1 to 60 seconds"),
    Input("d04", "env TERM=dumb overspill top", 125, "this is no terminal to show runs on"),
    Input("d05", "overspill stats 1", 125, "process 1 is in no run that goes on: `overspill stats` lists them"),
    Input("d06", "overspill stats abc", 125, "`abc` is no whole number"),
    Input("d07", "overspill stats 99999999", 125, "process 99999999 is in no run that goes on"),
    Input("d08", "overspill set", 125, "<PROCESS>", was="had angle brackets and bars", never=("<--memory",)),
    Input("d09", "overspill set 3007", 125, ("--memory", "--swapon", "--swapoff")),
    Input("d10", "overspill set $RUN --memory 64M", 0, ("run ", ": 32 MiB -> 64 MiB, in "), around=going_on),
    Input("d11", "overspill set $RUN --memory 10G", 125, ("above 128 MiB", "start it with --memory-max 10"),
          around=going_on),
    Input("d12", "overspill set $RUN --memory 1", 125, "below the working minimum of 4 MiB", around=going_on),
    Input("d13", "overspill set $RUN --memory 50%", 125, ("above 128 MiB", "--memory-max"), around=going_on,
          was="took no percentage, which `run` does"),
    Input("d14", "overspill set $RUN --swapon ram:100M", 0, "swaps to ram too", around=going_on),
    Input("d15", "overspill set $RUN --swapon foo", 125, ("`foo`", SWAPS), around=going_on),
    Input("d16", "overspill set $RUN --swapoff foo", 125, "no swap area is called `foo`: there are compressed",
          around=going_on),
    Input("d17", "overspill set $RUN --swapon ram:100M && overspill set $RUN --swapoff ram", 0,
          "swaps no more to ram, after", around=going_on),
    Input("d18", "overspill set $RUN --swapoff compressed", 125, ("MiB", "add an area first"), around=going_on,
          was="counted pages", never=(" pages",)),
    Input("d19", "overspill set 1 --memory 64M", 125, "process 1 is in no run that goes on"),
    # It goes to 8 MiB, or says what stays above that: the data of Python's own files.
    Input("d20", "overspill set $RUN -m 8M", 0, "run ", around=going_on),
    Input("d20b", "overspill set $RUN --memory +16M", 125, ("bad size `+16M`", SIZES), around=going_on),
    Input("d21", "overspill set $RUN --swapon file:/nonexistent", 125, "as in file:/nonexistent:8G", around=going_on),
    Input("d22", "as-nobody overspill set $RUN -m 32M", 125, "is in no run that goes on", around=going_on),
    Input("d23", "as-nobody overspill stats", 0, "no run", was="a header and nothing else"),
    Input("e01", "overspill stats", 0, "stopped", around=stopped, seconds=4,
          was="took 4.7 s, and left the stopped run out"),
    Input("e02", "overspill stats $RUN", 125, "stopped", around=stopped, was="said that there is no such run"),
    Input("e03", "overspill set $RUN --memory 64M", 125, "stopped", around=stopped,
          was="said that there is no such run, and changed its limit when it went on"),
    Input("e04", "overspill metrics | grep -v '^#' | head -3", 0, "overspill_", around=stopped, seconds=4,
          was="took 4.3 s"),
    Input("e05", "overspill stats", 0, "stopped", around=three_stopped, seconds=4, was="took 12.4 s"),
    # Shells, pipes and environments.
    Input("f01-redirect",
          "overspill run -m 32M -- python eat.py 100 >out.txt 2>err.txt; cat out.txt; echo ---; cat err.txt", 0,
          ("ok 25600\n---\noverspill: python: memory 32 MiB",)),
    Input("f02-pipe", "overspill run -m 32M -- python eat.py 100 2>/dev/null | cat", 0, "ok 25600"),
    Input("f03-pipe-head", "overspill run -m 32M -- python -c 'while True: print(1)' 2>err.txt | head -2; cat err.txt",
          0, ("1\n1\n", "BrokenPipe", "memory 32 MiB")),
    Input("f04-set-e", "set -e; overspill run -q -m 32M -- false; echo not reached", 1, SILENT),
    Input("f05-time", "time overspill run -q -m 32M -- python eat.py 100", 0, ("ok 25600", "real")),
    Input("f06-timeout", "timeout 3 overspill run -m 32M -- python random_touches.py 100 60", 124, "SIGTERM",
          was="no word of SIGTERM"),
    Input("f07-timeout-in", "overspill run -m 32M -- timeout 3 python random_touches.py 100 60", 124, "memory 32 MiB"),
    Input("f08-timeout-k", "timeout -s KILL 3 overspill run -m 32M -- python random_touches.py 100 60", 137,
          never=("overspill",)),
    Input("f09-nohup", "nohup overspill run -m 32M -- python eat.py 100 >nohup.txt 2>&1 & wait; cat nohup.txt", 0,
          ("ok 25600", "memory 32 MiB")),
    Input("f10-xargs", "seq 4 | xargs -P 4 -I{} overspill run -m 32M -- python eat.py 100", 0,
          ("ok 25600", "python: memory 32 MiB"), was="four summaries, and none says of which program"),
    Input("f11-make", "make -j3 -f own.mk", 0, "ok 25600"),
    Input("f12-make-under", "overspill run -m 64M -- make -j2 -f under.mk", 0, ("ok 7680", "make: memory 64 MiB")),
    Input("f13-env-i", 'env -i PATH="$PATH" overspill run -m 32M -- python eat.py 100', 0, "ok 25600"),
    Input("f14-env-i-nopath", 'env -i "$(which overspill)" run -m 32M -- "$(which python)" eat.py 100', 0, "ok 25600"),
    Input("f15-env-i-nopath2", 'env -i "$(which overspill)" run -m 32M -- ls -d /tmp', 0, "/tmp\n"),
    Input("f16-nohome", "env -u HOME overspill run -m 32M -- python eat.py 100", 0, "ok 25600"),
    Input("f17-de", "env LANG=de_DE.UTF-8 LC_ALL=de_DE.UTF-8 overspill run -m 1.5G -- true", 0, "memory 1.5 GiB"),
    Input("f18-rodir", "cd ro && as-nobody overspill run -m 32M -- /usr/bin/python3 eat.py 100", 0, "ok 25600"),
    Input("f19-rodir-report", "cd ro && as-nobody overspill run -m 32M --report r.html -- true", 125,
          "cannot write to r.html", never=("--touches",), was="did not name --report, but three other options"),
    Input("f20-stats-nodir", "overspill run -m 32M --stats /nonexistent/x.json -- true", 125,
          "cannot write to /nonexistent/x.json"),
    Input("f21-stats-dir", "overspill run -m 32M --stats /tmp -- true", 125, "cannot write to /tmp"),
    Input("f22-report-dir", "overspill run -m 32M --report /tmp -- true", 125, "cannot write to /tmp",
          never=("--touches",), was="did not name --report, but three other options"),
    Input("f23-stats-full", "overspill run -m 32M --stats /dev/full -- true", 0, "/dev/full"),
    Input("f24-tmpdir", "env TMPDIR=/nonexistent overspill run -m 32M -- true", 125, ("/nonexistent", "$TMPDIR"),
          was="did not say that the path is from $TMPDIR"),
    Input("f25-closedfd", "overspill run -m 32M -- python eat.py 100 >&-", 0, "memory 32 MiB"),
    Input("f26-closederr", "overspill run -m 32M -- python eat.py 100 2>&-", 0, "ok 25600"),
    Input("f27-closedin", "overspill run -m 32M -- python eat.py 100 <&-", 0, ("ok 25600", "memory 32 MiB")),
    # Programs of all sorts.
    Input("g-gostatic", "overspill run -m 64M -- g/gostatic", 0, ("ok 51200", "memory 64 MiB"), was="refused"),
    Input("g-gocgo", "overspill run -m 64M -- g/gocgo", 0, ("ok 51200", "memory 64 MiB")),
    Input("g-musldyn", "overspill run -m 64M -- g/musldyn", 0, ("ok 51200", "memory 64 MiB"), was="refused"),
    Input("g-muslstatic", "overspill run -m 64M -- g/muslstatic", 0, ("ok 51200", "memory 64 MiB"), was="refused"),
    Input("g-cdyn", "overspill run -m 64M -- g/cdyn", 0, ("ok 51200", "memory 64 MiB")),
    Input("g-cstatic", "overspill run -m 64M -- g/cstatic", 0, ("ok 51200", "memory 64 MiB"), was="refused"),
    Input("g-casan", "overspill run -m 64M -- g/casan", 0, ("ok 51200", "memory 64 MiB"), was="refused"),
    Input("g-su", "overspill run -m 64M -- su nobody -s /bin/sh -c id", 0, ("uid=65534", "memory 64 MiB"),
          was="refused, with doubtful advice", needs=("root",)),
    Input("g-sh-static", "overspill run -m 64M -- sh -c 'g/gostatic; g/cdyn'", 0, ("ok 51200", "memory 64 MiB"),
          was="left the static one without a limit, and unnamed", never=("outside the limit",)),
    Input("g-script", "overspill run -m 64M -- d/interpreter.sh", 126, ("/nonexistent/interp", "d/interpreter.sh")),
    Input("g-script2", "overspill run -m 64M -- d/static.sh", 0, ("ok 51200", "memory 64 MiB"), was="refused",
          needs=("built:g/cstatic",)),
    Input("g-ping", "overspill run -m 64M -- /bin/su --help", 0, ("Usage", "memory 64 MiB"), was="refused"),
    Input("g-docker", "overspill run -m 64M -- docker --version", 0, ("Docker version", "memory 64 MiB"),
          was="refused"),
    Input("g-goext", "overspill run -m 64M -- g/goext", 0, ("ok 51200", "memory 64 MiB")),
    Input("g-gopie", "overspill run -m 64M -- g/gopie", 0, ("ok 51200", "memory 64 MiB")),
    Input("g-stats", "overspill run -q -m 64M --stats - -- sh -c g/gostatic", 0, ("ok 51200", '"programs": []'),
          was="did not name the program that has no limit"),
    Input("h-node", "overspill run -m 128M -- node eat.js", 0, ("ok 200", "memory 128 MiB"), was="V8 was told nothing"),
    Input("h-java", "overspill run -m 128M -- java Eat", 0, ("ok 200", "memory 128 MiB", "JAVA_TOOL_OPTIONS"),
          was="the JVM was told nothing", needs=("built:Eat.class",)),
    # Disks that are small, full, of others.
    Input("i01-smallfs", "overspill run -m 32M --swap file:lmnt -- python eat.py 200", 125,
          (FULL, "lmnt", "add swap elsewhere"), around=mounted),
    Input("i02-smallfs-size", "overspill run -m 32M --swap file:lmnt:1G -- python eat.py 200", 125,
          (FULL, "file system"), was="said `full (at most 1 GiB)`, and used nothing of 51 MiB",
          never=("full (at most 1 GiB)",), around=mounted),
    Input("i03-fullfs", "overspill run -m 32M --swap file:lmnt -- python eat.py 200", 125, ("lmnt", "room"),
          was="asked for a larger size where the disk is full", never=("a larger size",), around=full),
    Input("i03b-fullfs-size", "overspill run -m 32M --swap file:lmnt:1G -- python eat.py 200", 125, "lmnt",
          was="said `full (at most 1 GiB)`", never=("full (at most 1 GiB)",), around=full),
    Input("i04-fullfs-tmpdir", "env TMPDIR=lmnt overspill run -m 32M -- python eat.py 20", 125, ("lmnt", "$TMPDIR"),
          was="neither said that the disk is full, nor $TMPDIR", never=("a larger size",), around=full),
    Input("i04b-fullfs-tmpdir", "env TMPDIR=lmnt overspill run -m 32M -- true", 125, ("lmnt", "$TMPDIR"),
          was="neither said that the disk is full, nor $TMPDIR", never=("a larger size",), around=full),
    Input("i05-stats-fullfs", "overspill run -m 32M --stats lmnt/s.json -- true", 0, "lmnt/s.json", around=full),
    Input("i05b-report-fullfs", "overspill run -m 32M --report lmnt/s.html -- true", 0, "lmnt/s.html", around=full),
    Input("i06-rofs", "overspill run -m 32M --swap file:lmnt -- true", 125,
          ("Read-only file system", "name a place that is mounted for writing"), around=read_only),
    Input("i07-rofs-tmp", "env TMPDIR=lmnt overspill run -m 32M -- true", 125,
          ("Read-only file system", "mounted for writing"), around=read_only),
    Input("i08-block-ext4", 'overspill run -m 32M --swap "block:$LOOP" -- true', 125,
          ("holds an ext2, ext3 or ext4 file system", "overspill mkswap --force /dev/loop"), around=unmounted),
    Input("i09-mkswap-ext4", 'overspill mkswap "$LOOP"', 125, ("holds an ext2, ext3 or ext4 file system", "--force"),
          around=unmounted),
    Input("i10-mkswap-force", 'overspill mkswap --force "$LOOP"', 0, "Setting up swapspace version 1, size = 64.0 MiB",
          around=unmounted),
    Input("i11-block", MADE + 'overspill run -m 32M --swap "block:$LOOP" -- python eat.py 60', 0, "ok 15360",
          around=unmounted),
    Input("i12-block-too-small", MADE + 'overspill run -m 32M --swap "block:$LOOP" -- python eat.py 200', 125,
          (FULL, "is full (at most 64.0 MiB)", "add swap elsewhere"), around=unmounted),
    Input("i13-block-bare", MADE + 'overspill run -m 32M --swap "$LOOP" -- python eat.py 60', 0, "ok 15360",
          around=unmounted),
    Input("i14-block-nobody", MADE + 'as-nobody overspill run -m 32M --swap "block:$LOOP" -- true', 125,
          ("Permission denied", "you need the right to read and write it"), around=unmounted),
    Input("i15-mkswap-none", "overspill mkswap", 125, "<PATH>"),
    Input("i16-mkswap-dir", "overspill mkswap /tmp", 125, "/tmp is neither a file nor a block device"),
    Input("i17-mkswap-nofile", "overspill mkswap nofile", 125,
          "nofile is not there: make it first, as `fallocate -l 1G`"),
    Input("i18-mkswap-label", "overspill mkswap --label aaaaaaaaaaaaaaaaaaaaaaaa d/somefile", 125, "at most 16 fit"),
    Input("i19-500G", "overspill run -m 32M --swap file:/var/tmp:10T -- true", 0, "10 TiB",
          was="no word that the disk has not as much"),
    Input("i20-swapsize-500G", "overspill run -m 32M --swap-size 10T -- true", 0, "10 TiB",
          was="no word that the disk has not as much"),
    Input("i21-600M-1G", "overspill run -m 32M --swap file:lmnt:1G -- python eat.py 200", 0, "ok 51200",
          around=middling),
    Input("i22-600M-1G-800", "overspill run -m 32M --swap file:lmnt:1G -- python eat.py 800", 125,
          (FULL, "file system"), was="said `full (at most 1 GiB)` at 512 MiB", never=("full (at most 1 GiB)",),
          around=middling),
    Input("i23-600M", "overspill run -m 32M --swap file:lmnt -- python eat.py 400", 125,
          (FULL, "lmnt", "add swap elsewhere"), was="kept half of the disk and did not say so", around=middling),
    # Variables, files and limits of the session.
    Input("j01", "env OVERSPILL_MEMORY=abc overspill run true", 125, ("OVERSPILL_MEMORY: bad size `abc`", SIZES)),
    Input("j02", "env OVERSPILL_MEMORY=64M overspill run true", 0, "memory 64 MiB"),
    Input("j03", "env OVERSPILL_CONFIG=number.toml overspill run true", 125, ("number.toml:2", '"512M"'),
          was="did not say how to write it"),
    Input("j04", "env OVERSPILL_CONFIG=misspelt.toml overspill run true", 125,
          "misspelt.toml:2: unknown field `memroy`"),
    Input("j05", "env OVERSPILL_CONFIG=no-section.toml overspill run true", 125,
          ("no-section.toml:1", "expected `run`")),
    Input("j06", "env OVERSPILL_CONFIG=unclosed.toml overspill run true", 125,
          "unclosed.toml:1: unclosed table, expected `]`"),
    Input("j07", "env OVERSPILL_CONFIG=/nonexistent.toml overspill run true", 125, "/nonexistent.toml: No such file"),
    Input("j08", "env OVERSPILL_CONFIG=swap-word.toml overspill run true", 125, ("swap-word.toml:3", "["),
          was="did not say how to write it"),
    Input("j08b", "env OVERSPILL_CONFIG=unknown.toml overspill run true", 125, "unknown.toml:3: unknown field `stats`"),
    Input("j09", "overspill run --memory 64M --memory-each 32M true", 125, "'--memory-each' found"),
    Input("j10", "overspill run --memory 64M --memory-max 32M true", 125, ("32 MiB", "64 MiB"),
          was="accepted silently"),
    Input("j11", "overspill run --memory 64M --memory-max 1000G true", 0, "1000 GiB", was="accepted silently"),
    Input("j12", "overspill run --memory 64M --way foo true", 125,
          ("'foo'", "[possible values: faults, calls, touches]")),
    Input("j13", "as-nobody overspill run --memory 64M --way faults true", 125, "/dev/userfaultfd",
          never=("programs cannot be paged here",)),
    Input("j14", "overspill run --memory 64M --metrics foo true", 125, "name a free port as in 127.0.0.1:9779"),
    Input("j15", "overspill run --memory 64M --metrics 127.0.0.1:1022 true", 0, "http://127.0.0.1:1022/",
          needs=("root",)),
    Input("j15b", "overspill run --memory 64M --metrics 127.0.0.1:1023 true", 0, "http://127.0.0.1:1023/",
          needs=("root",)),
    Input("j15c", "as-nobody overspill run --memory 64M --metrics 127.0.0.1:80 true", 125,
          ("Permission denied", "name a free port")),
    Input("j15d", "overspill metrics --listen 9779", 125, ("cannot serve metrics at 9779", "127.0.0.1:9779")),
    Input("j15e", "timeout 2 overspill metrics --listen :9779", 124, "serving",
          was="did not take it for all interfaces"),
    Input("j15f", "overspill metrics --textfile /nonexistent/x", 125, "/nonexistent/x",
          was="spoke of a report, and of a temporary name", never=("the report", "/.overspill")),
    Input("j16", "ulimit -v 1000000; overspill run --memory 64M true", 0, "memory 64 MiB", was="refused"),
    Input("j17", "ulimit -n 8; overspill run --memory 64M true", 125, "raise `ulimit -n`"),
    Input("j18", "ulimit -f 1; overspill run --memory 8M python eat.py 20", 125, "ulimit -f",
          was="asked for a larger size", never=("a larger size",)),
    Input("j19", "as-nobody bash -c 'ulimit -u 2; overspill run --memory 64M true'", 125, "ulimit", was="no remedy"),
    Input("j20", "overspill run --memory 64M --swap ram:64M --swap ram:64M true", 0, "memory 64 MiB"),
    Input("j21", "overspill run --memory 64M -s file:/var/tmp,pri=99999 true", 125,
          "`99999` is not a number from 0 to 32767"),
    Input("j22", "overspill run --memory 64M -s file:/var/tmp:abc true", 125, "bad size `abc`"),
    Input("j23", "overspill run --memory 64M -s file:/var/tmp:-1G true", 125, "bad size `-1G`"),
    Input("j24", "overspill run --memory 64M -s file:/var/tmp:1K true", 125,
          "a swap area needs 40 KiB; give it a larger size"),
    Input("j25", "overspill run --memory 64M -s 'file:~' true", 125, "as in file:~:8G"),
    Input("j26", "overspill run --memory 64M -s '' true", 125, SWAPS),
    Input("j27", "overspill run 512M true", 127, "a limit is --memory 512M"),
    Input("j28", "overspill run 512M --memory true", 127, "a limit is --memory 512M"),
    Input("j29", "overspill --memory 512M true", 125, "write `overspill run` before it",
          was="did not say that `run` is missing"),
    Input("j30", "overspill sort -S 4G x", 125, "overspill run", was="`did you mean set?`",
          never=("did you mean `set`",)),
    Input("j31", "overspill RUN -m 1G true", 125, "unrecognized subcommand 'RUN'"),
    Input("j32", "overspill run -m 64M -v true", 125, "unexpected argument '-v' found"),
    Input("j33", "overspill run -m 64M --no-children -- sh -c 'python eat.py 100; true'", 0,
          "ok 25600", never=("would do",), was="advice about what had no limit"),
    Input("j34", "overspill doctor --directory /nonexistent", 125, "/nonexistent is no directory"),
    Input("j35", "overspill doctor --directory /dev/shm", 0, "tmpfs"),
    Input("j36", "overspill doctor --directory d/somefile", 125, "d/somefile is no directory"),
    Input("j37", "overspill run -m 64M -m 32M true", 125, "cannot be used multiple times"),
    Input("j38", "overspill run --memory=25% -- true", 0, "memory "),
    Input("j39", "overspill run --memory 2.5% -- true", 0, "memory "),
    Input("j40", "overspill run --memory 0.5 -- true", 125, "below the working minimum of 4 MiB"),
    Input("j41", "overspill run --memory 4M -- python eat.py 20", 0, ("ok 5120", "memory 4 MiB")),
    Input("j42", "overspill run --memory 15T -- true", 0, ("more than the", "give at most")),
    Input("j43", "overspill run --memory 98% -- true", 0, "give at most", was="no note"),
    # In a container of 256 MiB.
    Input("k00", "in-container overspill doctor", 0, "256 MiB", around=container),
    Input("k01-plain", "in-container python eat.py 400", 137, SILENT, around=container),
    Input("k02-512M", "in-container overspill run -m 512M -- python eat.py 400", 137,
          ("more than the 256 MiB", "give at most some 192 MiB", "for want of memory here"), around=container,
          was="no word of the kernel's kill"),
    Input("k03-100pct", "in-container overspill run -m 100% -- python eat.py 400", 137,
          ("the kernel may end the run", "for want of memory here"), around=container,
          was="no note before, no word after"),
    Input("k04-90pct", "in-container overspill run -m 90% -- python eat.py 400", 0, "ok 102400", around=container),
    Input("k05-75pct", "in-container overspill run -m 75% -- python eat.py 400", 0, "ok 102400", around=container),
    Input("k06-ram", "in-container overspill run -m 128M --swap ram:1G -- python eat.py 400", 137,
          ("the kernel may end the run", "for want of memory here"), around=container,
          was="no note before, no word after"),
    Input("k07-compressed", "in-container overspill run -m 128M --swap compressed:1G -- python noise.py 400", 137,
          ("the kernel may end the run", "for want of memory here"), around=container,
          was="no note before, no word after"),
    # What it says when a program ends.
    Input("l01", "overspill run -m 100M -- python frame_pandas.py", 0, "ok True", needs=("python:pandas",)),
    Input("l02", "overspill run -m 100M -- python frame_polars.py", 0, "ok True", needs=("python:polars",),
          was="SIGSEGV"),
    Input("m01-fits", "overspill run -m 1G -- python eat.py 100", 0, "nothing was swapped: ",
          was="did not say that it fits"),
    Input("m02-thrash", "overspill run -m 16M -- python random_touches.py 100 15", 0, "of it waiting for swap (",
          was="did not say that it waited nearly all the time"),
    Input("m03-multi", "overspill run -m 64M -- sh -c 'for i in 1 2 3 4; do python eat.py 100 & done; wait'", 0,
          ("ok 25600", "most in use 4"), was="told the peak of the largest process as the run's"),
    Input("m04-quiet", "overspill run -q -m 16M --swap ram:8M -- python eat.py 100", 125,
          (FULL, "ram is full (at most 8 MiB)")),
    Input("m05-stats-dash", "overspill run -q -m 64M --stats - -- true | python -m json.tool | head -1", 0, "{"),
    Input("m06-signal", "overspill run -m 64M -- sh -c 'kill -SEGV $$'", 139, "SIGSEGV (signal 11)",
          was="no word of the signal"),
    Input("m07-abort", "overspill run -m 64M -- python -c 'import os; os.abort()'", 134, "SIGABRT (signal 6)",
          was="no word of the signal"),
    Input("m08-exit3", "overspill run -m 64M -- sh -c 'exit 3'", 3, "memory 64 MiB"),
    Input("m09-exit125", "overspill run -m 64M -- sh -c 'exit 125'", 125, "memory 64 MiB"),
    Input("n01",
          "overspill run -q -m 64M -- sh -c 'env | grep -i -E \"overspill|preload\"; echo; cat /proc/$PPID/comm'", 0,
          "overspill"),
    Input("n02-nested", "overspill run -q -m 64M -- overspill run -m 32M -- true", 0, "memory 32 MiB"),
    Input("n03-ldpreload", "env LD_PRELOAD=/nonexistent.so overspill run -q -m 64M -- true", 0, "/nonexistent.so"),
    Input("n04-jemalloc", "LD_PRELOAD=libjemalloc.so.2 overspill run -m 64M -- python eat.py 200", 0, "ok 51200",
          needs=("jemalloc",)),
    # Namespaces, build tools, installations.
    Input("o01-userns", "as-nobody unshare -Ur overspill doctor", 0, "page size"),
    Input("o02-userns-run", "as-nobody unshare -Ur overspill run -m 64M -- /usr/bin/python3 eat.py 100", 0, "ok 25600"),
    Input("o03-novartmp", "unshare -m sh -c 'mount -t tmpfs -o ro tmpfs /var/tmp && overspill run -m 64M -- true'", 125,
          ("Read-only file system", "--swap file:"), was="did not say --swap file:DIR"),
    Input("o03b-novartmp",
          "unshare -m sh -c 'mount -t tmpfs tmpfs /var/tmp && overspill run -m 64M -- python eat.py 100'", 0,
          ("its file system is in memory (tmpfs)", "ok 25600")),
    Input("o04-noproc", "unshare -m sh -c 'mount -t tmpfs tmpfs /proc && overspill run -m 64M -- true'", 125, "/proc"),
    Input("p01-go", "overspill run -m 128M -- go version", 0, ("go version", "memory 128 MiB"), was="refused"),
    Input("p02-cargo", "overspill run -m 128M -- sh -c 'cd new-crate && cargo build 2>&1 | tail -1'", 0, "Finished"),
    Input("p03-rustup", "overspill run -m 128M -- cargo --version", 0, "cargo 1"),
    Input("p04-git", "overspill run -m 64M -- git -C tree log --oneline -1", 0, "first"),
    Input("p05-pyenv-shim", "overspill run -m 64M -- python3 -c 'print(1)'", 0, ("1\n", "memory 64 MiB")),
    Input("p06-busybox", "overspill run -m 64M -- busybox true", 0, "busybox: memory 64 MiB"),
    Input("p07-snap", "overspill run -m 64M -- ssh -V", 0, "OpenSSH"),
    Input("q01-alone", "alone/overspill run -m 64M -- g/cdyn", 0, "ok 51200",
          was="did not work without its preload object"),
    Input("q02-symlink", "alone/link run -m 64M -- true", 0, "memory 64 MiB"),
    Input("q03-inst", "inst/bin/overspill run -m 64M -- true", 0, "memory 64 MiB"),
    Input("q04-space", "'sp ace/overspill' run -m 64M -- g/cdyn", 0, "ok 51200", was="refused a path with a space"),
    Input("q05-home-priv", "cd priv; as-nobody ./overspill run -m 64M -- true", 0, "memory 64 MiB",
          was="said that a file is missing which was not readable"),
    Input("q06-daemon",
          "overspill run -m 64M -- sh -c \"setsid sh -c 'sleep 1; : >daemon.out' & echo started\"; sleep 3; ls "
          "daemon.out", 0, ("started", "daemon.out"), was="killed what the program left behind, in obscure words"),
    # Debuggers.
    Input("r01", "timeout -k 2 20 overspill run -q -m 64M -- strace -f -o st1.txt g/cdyn", 0, "ok 51200", was="hung"),
    Input("r02", "timeout -k 2 20 overspill run -q -m 64M -- strace -f -o st2.txt g/segv", 139, "SIGSEGV", was="hung"),
    Input("r03", "timeout -k 2 20 overspill run -q -m 64M -- g/segv", 139, "SIGSEGV (signal 11)",
          was="no word of the signal"),
    Input("r04", "timeout -k 2 20 strace -f -o st4.txt overspill run -q -m 64M -- g/segv", 139),
    Input("r05", "timeout -k 2 20 overspill run -q -m 64M -- strace -o st5.txt g/segv", 139, "SIGSEGV", was="hung"),
    Input("r06", "timeout -k 2 20 overspill run -q -m 64M -- gdb -batch -ex run -ex bt g/segv", 0,
          ("SIGSEGV", "in main")),
    Input("r07", "timeout -k 2 10 overspill run -q -m 64M -- strace -o st7.txt true", 0, was="hung"),
    Input("r08", "timeout -k 2 10 overspill run -q -m 64M --no-children -- strace -o st8.txt true", 0, was="hung"),
    Input("s01-joblib", "overspill run -m 64M -- python joblib_sum.py", 0, "ok True", needs=("python:joblib",)),
    Input("s02-forkpool", "overspill run -m 32M -- python fork_pool.py", 0, "ok True"),
    Input("t01-archive", "as-nobody inst/bin/overspill run -m 64M -- /usr/bin/python3 eat.py 100", 0, "ok 25600"),
    Input("u01-deb", "inst/bin/overspill run -m 64M -- python eat.py 100", 0, "ok 25600"),
    # Likely mistakes.
    Input("v01", "overspill run -q -m 64M ls -d -q --color=never /tmp", 0, "/tmp"),
    Input("v02", "shopt -s expand_aliases; alias foo=true; overspill run -q -m 64M -- foo", 127,
          "foo: no such program"),
    Input("v03", "overspill run -q -m 64M -- cd /tmp", 127, "cd: no such program"),
    Input("v04", "overspill run -q -m 64M -- 'ls -d /tmp'", 127, "ls -d /tmp: no such program"),
    Input("v05", "overspill run -q -m 64M -- FOO=1 true", 127, "env FOO=1", was="did not think of env"),
    Input("v06", "overspill run --help sort", 0, "Run a program, unmodified, in a given amount of memory."),
    Input("v07", "overspill help foo", 125, "unrecognized subcommand 'foo'"),
    Input("v08", "overspill set foo -m 1G", 125, "`foo`"),
    Input("v09", "overspill run -m 64M --progress -- true", 0, "memory 64 MiB"),
    Input("v10", "overspill run -m 64M --swap 8G -- true", 125, ("`8G`", "--swap-size 8G"),
          was="did not think of --swap-size"),
    Input("v11", "overspill run -m 64M --swap file:/var/tmp:8G:pri=1 -- true", 125, ("`pri=1`",)),
    Input("v12", "overspill run -m 64M --swap file=/var/tmp -- true", 125, ("`file=/var/tmp`", "file:PATH")),
    Input("v13", "overspill run -m 64M --swap swapfile -- true", 125, ("`swapfile`", "file:swapfile"),
          was="did not think of file:swapfile"),
    Input("v14", "overspill run -m 64M --swap ./swapfile -- true", 125, "file:./swapfile",
          was="did not think of file:./swapfile"),
    Input("v15", "overspill bench", 125, "unrecognized subcommand 'bench'", never=("did you mean",)),
    Input("v16", "overspill sim run nosuch", 125, "unrecognized subcommand 'sim'"),
    Input("v17", "overspill completions bash >/dev/full", 125, "No space left on device"),
    Input("v18", "overspill stats >/dev/full", 125, "No space left on device"),
    Input("v19", "overspill run --help | head -1", 0, "Run a program, unmodified, in a given amount of memory."),
    Input("v20", "overspill doctor | head -1", 0, "page size"),
    # Libraries for data.
    Input("w01-polars", "overspill run -m 100M -- python frame_polars.py", 0, "ok True", needs=("python:polars",),
          was="SIGSEGV"),
    Input("w02-polars-skip", "env POLARS_SKIP_CPU_CHECK=1 overspill run -m 100M -- python frame_polars.py", 0,
          "ok True", needs=("python:polars",)),
    Input("w03-polars-touches", "overspill run -m 100M --way touches -- python frame_polars.py", 0, "ok True",
          needs=("python:polars",), was="SIGSEGV"),
    Input("w04-polars-nobody", "as-nobody overspill run -m 100M -- python frame_polars.py", 0, "ok True",
          needs=("python:polars",), was="SIGSEGV"),
    Input("w05-polars-1.30", "overspill run -m 100M -- python frame_polars.py", 0, "ok True", needs=("python:polars",),
          was="SIGSEGV"),
    Input("w06-lts", "overspill run -m 100M -- python frame_polars.py", 0, "ok True", needs=("python:polars",),
          was="SIGSEGV"),
    Input("x01-pyarrow", "overspill run -m 60M -- python frame_pyarrow.py", 0, "ok True", needs=("python:pyarrow",)),
    Input("x02-duckdb", "overspill run -m 60M -- python frame_duckdb.py", 0, "ok True", needs=("python:duckdb",)),
    Input("x03-calls", "overspill run -m 60M --way calls -- true", 0, "memory 60 MiB", was="said that root may not",
          never=("is permitted for",)),
    Input("x04-jupyter", "overspill run -m 200M -- python -c 'import ipykernel, nbclient; print(True)'", 0, "True",
          needs=("python:nbclient", "python:ipykernel")),
    Input("x05-notebook", "overspill run -m 150M -- python notebook.py", 0, "ok True",
          needs=("python:nbclient", "python:ipykernel")),
]


def environment(work):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OVERSPILL") and name != "TMPDIR"}
    return kept | {"PATH": f"{work / 'bin'}:{os.environ['PATH']}"}


def prepare(work):
    work.chmod(0o755)
    for name in ("bin", "ro", "d", "new-crate/src", *DIRECTORIES):
        (work / name).mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (work / name).write_text(text)
    for name in EXECUTABLE:
        (work / name).chmod(0o755)
    (work / "bin/python").symlink_to(os.path.realpath(sys.executable))
    install(work / "bin", *COMPANIONS)
    install(work / "alone")
    install(work / "sp ace", *COMPANIONS)
    install(work / "inst/bin")
    install(work / "inst/lib/overspill", *COMPANIONS, program=())
    install(work / "priv", *COMPANIONS)
    for file in (work / "priv").glob("overspill-*"):
        file.chmod(0o600)
    (work / "alone/link").symlink_to(work / "bin/overspill")
    for tool, command in BUILT.values():
        if shutil.which(tool):
            subprocess.run(["sh", "-c", command], cwd=work, check=True, env=environment(work))
    if shutil.which("git"):
        somebody = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
        subprocess.run(["git", "init", "-q", "tree"], cwd=work, check=True)
        commit = ["commit", "-q", "--allow-empty", "-m", "first"]
        subprocess.run(["git", "-C", "tree", *somebody, *commit], cwd=work, check=True)


def install(directory, *companions, program=(OVERSPILL.name,)):
    for name in (*program, *companions):
        if (OVERSPILL.parent / name).exists():
            shutil.copy(OVERSPILL.parent / name, directory)


def answer(row, work):
    """The status and what was said, on both ways out together."""
    with tempfile.TemporaryFile("w+") as said, row.around(work) as more:
        process = subprocess.Popen(
            ["bash", "-c", row.command],
            cwd=work,
            env=environment(work) | more,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            status = process.wait(row.seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end(process)
        said.seek(0)
        text = said.read().replace(str(work), "WORK")
    return (128 - status if status is not None and status < 0 else status), text


def faults(row, status, text):
    """What is wrong with an answer, in words."""
    if status is None:
        yield f"did not end in {row.seconds} s"
    elif status != row.status:
        yield f"status {status}, not {row.status}"
    if row.says is SILENT:
        if text:
            yield "is not silent"
        return
    for part in (row.says,) if isinstance(row.says, str) else row.says:
        if part not in text:
            yield f"does not say: {part}"
    for part in (*row.never, "panicked"):
        if part in text:
            yield f"says: {part}"


def first_line(text):
    lines = text.splitlines()
    own = [line for line in lines if line.startswith("overspill: ")]
    return (own or lines or ["(nothing)"])[0]


def try_one(row, work, verbose):
    reason = lacking(row, work)
    if reason:
        print(f"{row.id:20} -    skipped  {reason}", flush=True)
        return "skipped", ""
    status, text = answer(row, work)
    wrong = list(faults(row, status, text))
    verdict = "FAIL" if wrong else "changed" if row.was else "ok"
    line = first_line(text)
    print(f"{row.id:20} {status!s:4} {verdict:8} {line}", flush=True)
    for fault in wrong:
        print(f"    {fault}", flush=True)
    if wrong or verbose:
        print("".join(f"    | {one}\n" for one in text.splitlines()[:30]), end="", flush=True)
    return verdict, f"| {row.id} | {code(row.command)} | {code(line)} | {status} |"


def code(text):
    return "`` " + text.replace("|", "\\|").replace("\n", " ") + " ``"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE", help="write what is said to FILE, as Markdown")
    parser.add_argument("--skip", action="append", default=[], metavar="ID", help="do not try this one")
    parser.add_argument("--verbose", action="store_true", help="print all that is said")
    parser.add_argument("ids", nargs="*", metavar="ID")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    rows = [row for row in INPUTS if row.id not in args.skip and (not args.ids or row.id in args.ids)]
    with tempfile.TemporaryDirectory(prefix="overspill-inputs-") as name:
        work = pathlib.Path(name)
        prepare(work)
        results = [try_one(row, work, args.verbose) for row in rows]
    counts = {word: sum(verdict == word for verdict, _ in results) for word in ("ok", "changed", "FAIL", "skipped")}
    print(f"{len(results)} inputs: " + ", ".join(f"{count} {word}" for word, count in counts.items()))
    if args.table:
        head = ["| id | command | says now | rc |", "|---|---|---|---|"]
        args.table.write_text("\n".join([*head, *(line for _, line in results if line)]) + "\n")
    sys.exit(counts["FAIL"] > 0)


if __name__ == "__main__":
    main()
