"""Arrays larger than memory, four ways: overspill, numpy.memmap, dask, zarr.

A group-by, a sort and a matrix product, over data four times the limit. Each way is a process of its own. With --group all
but the plain way are in a memory control group of what they take after their imports plus the limit and 24 MiB, so that files that they
map or cache count as well; without, only overspill keeps to the limit, and the peak is what the process had resident beside
its imports. All results are compared with plain numpy's.

    python crates/python/bench/compare.py --rounds 5 --directory /var/tmp [--group]

Takes numpy and overspill; dask and zarr are left out if they are not installed.
"""

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

GROUPS = 1000
ROWS = 24 << 20  # 8 bytes of key and 8 of value: 384 MiB
NUMBERS = 48 << 20  # 384 MiB
SIDE = 4096  # three matrices of 128 MiB
BLOCK = 512


def groupby_plain(limit):
    keys, values = np.fromfile("keys", "i8"), np.fromfile("values", "f8")
    return np.bincount(keys, values, GROUPS)


def groupby_overspill(limit):
    import overspill

    with overspill.limit(limit, swap="file:."):
        keys, values = np.fromfile("keys", "i8"), np.fromfile("values", "f8")
    return np.bincount(keys, values, GROUPS)


def groupby_memmap(limit):
    keys, values = np.memmap("keys", "i8", "r"), np.memmap("values", "f8", "r")
    return np.bincount(keys, values, GROUPS)


def groupby_dask(limit):
    import dask.array as da

    keys = da.from_array(np.memmap("keys", "i8", "r"), limit // 64)
    values = da.from_array(np.memmap("values", "f8", "r"), limit // 64)
    return da.bincount(keys, values, GROUPS).compute()


def groupby_zarr(limit):
    import zarr

    keys, values = zarr.open("keys.zarr", mode="r"), zarr.open("values.zarr", mode="r")
    sums, step = np.zeros(GROUPS), keys.chunks[0]
    for at in range(0, keys.shape[0], step):
        sums += np.bincount(keys[at : at + step], values[at : at + step], GROUPS)
    return sums


def sort_plain(limit):
    numbers = np.fromfile("numbers", "i8")
    numbers.sort()
    return numbers[:: 1 << 16]


def sort_overspill(limit):
    import overspill

    with overspill.limit(limit, swap="file:."):
        numbers = np.fromfile("numbers", "i8")
    numbers.sort()
    return numbers[:: 1 << 16]


def sort_memmap(limit):
    numbers = np.memmap("sorted", "i8", "w+", shape=(NUMBERS,))
    numbers[:] = np.memmap("numbers", "i8", "r")
    numbers.sort()
    return numbers[:: 1 << 16]


def multiply(a, b, c, announce=lambda block: None):
    """By blocks of rows: all of b is read in order for each."""
    for i in range(0, SIDE, BLOCK):
        for k in range(0, SIDE, BLOCK):
            announce(b[k : k + BLOCK])
            c[i : i + BLOCK] += a[i : i + BLOCK, k : k + BLOCK] @ b[k : k + BLOCK]


def product_plain(limit):
    a, b = np.fromfile("a", "f8").reshape(SIDE, SIDE), np.fromfile("b", "f8").reshape(SIDE, SIDE)
    return (a @ b)[::512, ::512]


def product_overspill(limit):
    import overspill

    with overspill.limit(limit, swap="file:."):
        a, b = np.fromfile("a", "f8").reshape(SIDE, SIDE), np.fromfile("b", "f8").reshape(SIDE, SIDE)
        c = np.zeros((SIDE, SIDE))
        multiply(a, b, c, lambda block: overspill.advise(block, "willneed"))
    return c[::512, ::512]


def product_memmap(limit):
    a, b = np.memmap("a", "f8", "r", shape=(SIDE, SIDE)), np.memmap("b", "f8", "r", shape=(SIDE, SIDE))
    c = np.memmap("c", "f8", "w+", shape=(SIDE, SIDE))
    multiply(a, b, c)
    return c[::512, ::512]


def product_dask(limit):
    import dask.array as da

    a = da.from_array(np.memmap("a", "f8", "r", shape=(SIDE, SIDE)), (BLOCK, BLOCK))
    b = da.from_array(np.memmap("b", "f8", "r", shape=(SIDE, SIDE)), (BLOCK, BLOCK))
    c = np.memmap("c", "f8", "w+", shape=(SIDE, SIDE))
    da.store(a @ b, c, lock=False)
    return c[::512, ::512]


def product_zarr(limit):
    import zarr

    a, b = zarr.open("a.zarr", mode="r"), zarr.open("b.zarr", mode="r")
    c = zarr.create_array("c.zarr", shape=a.shape, chunks=a.chunks, dtype="f8", overwrite=True)
    for i in range(0, SIDE, BLOCK):
        for j in range(0, SIDE, BLOCK):
            block = np.zeros((BLOCK, BLOCK))
            for k in range(0, SIDE, BLOCK):
                block += a[i : i + BLOCK, k : k + BLOCK] @ b[k : k + BLOCK, j : j + BLOCK]
            c[i : i + BLOCK, j : j + BLOCK] = block
    return c[::512, ::512]


JOBS = {"groupby": ROWS * 16 // 4, "sort": NUMBERS * 8 // 4, "product": SIDE * SIDE * 8 * 3 // 4}
# Beside the limit, for what libraries keep for themselves.
SPARE = 24 << 20
WAYS = ["plain", "overspill", "memmap", "dask", "zarr"]


def make_input(ways):
    random = np.random.default_rng(1)
    random.integers(0, GROUPS, ROWS).tofile("keys")
    random.random(ROWS).tofile("values")
    random.integers(0, 1 << 62, NUMBERS).tofile("numbers")
    for name in ("a", "b"):
        random.random((SIDE, SIDE)).tofile(name)
    if "zarr" in ways:
        import zarr

        for name, dtype in (("keys", "i8"), ("values", "f8")):
            chunks = (1 << 20,)
            array = zarr.create_array(f"{name}.zarr", shape=(ROWS,), chunks=chunks, dtype=dtype, compressors=None)
            array[:] = np.fromfile(name, dtype)
        for name in ("a", "b"):
            shape, chunks = (SIDE, SIDE), (BLOCK, BLOCK)
            array = zarr.create_array(f"{name}.zarr", shape=shape, chunks=chunks, dtype="f8", compressors=None)
            array[:] = np.fromfile(name, "f8").reshape(shape)


class Group:
    """A memory control group for one process, version 1 or 2; removed at the end."""

    def __init__(self):
        one = Path("/sys/fs/cgroup/memory")
        root = one if one.exists() else Path("/sys/fs/cgroup")
        self.limit = "memory.limit_in_bytes" if one.exists() else "memory.max"
        self.peak = "memory.max_usage_in_bytes" if one.exists() else "memory.peak"
        self.path = root / f"overspill-compare-{os.getpid()}"

    def __enter__(self):
        self.path.mkdir()
        return self

    def __exit__(self, *_):
        self.path.rmdir()

    def take(self, pid, limit):
        if limit is not None:
            (self.path / self.limit).write_text(str(limit))
        (self.path / "cgroup.procs").write_text(str(pid))

    def peak_bytes(self):
        return int((self.path / self.peak).read_text())


def status(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    return 0


def child(job, way):
    """Imports, says what it takes, waits to be put into its group, and does the job."""
    for module in {"dask": ["dask.array"], "zarr": ["zarr"], "overspill": ["overspill"]}.get(way, []):
        __import__(module)
    print(status("VmRSS"), flush=True)
    sys.stdin.readline()
    start = time.monotonic()
    result = np.asarray(globals()[f"{job}_{way}"](JOBS[job]))
    seconds = time.monotonic() - start
    np.save(f"result-{job}-{way}.npy", result)
    print(json.dumps({"seconds": seconds, "peak": status("VmHWM")}), flush=True)


def drop_caches():
    try:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        pass


def measure(job, way, arguments):
    drop_caches()
    command = [sys.executable, os.path.abspath(__file__), "--child", job, way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        base = int(process.stdout.readline())
        group = Group() if arguments.group else None
        if group:
            group.__enter__()
            group.take(process.pid, None if way == "plain" else base + JOBS[job] + SPARE)
        try:
            said, _ = process.communicate("go\n", timeout=arguments.patience)
            peak = group.peak_bytes() if group else None
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return "gave up"
        finally:
            if group:
                process.wait()
                time.sleep(0.1)
                group.__exit__()
    if process.returncode:
        return "killed" if process.returncode < 0 else f"failed ({process.returncode})"
    answer = json.loads(said)
    answer["peak"] = (peak or answer["peak"] - base) >> 20
    expected = np.load(f"result-{job}-plain.npy")
    if not np.allclose(np.load(f"result-{job}-{way}.npy"), expected):
        raise SystemExit(f"{job} by {way}: the result is not plain numpy's")
    return answer


def lines(job, way):
    function = globals()[f"{job}_{way}"]
    parts = [function, *(part for part in [multiply] if part.__name__ in function.__code__.co_names)]
    body = [line.strip() for part in parts for line in inspect.getsource(part).splitlines()[1:]]
    return sum(bool(line) and not line.startswith('"""') for line in body)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--patience", type=float, default=120, help="seconds after which a run is given up")
    parser.add_argument("--group", action="store_true", help="hold all but plain numpy to the limit; as root")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(*arguments.child)
    ways = [way for way in WAYS if way in ("plain", "overspill", "memmap") or is_there(way)]
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        os.chdir(directory)
        make_input(ways)
        print("| job | way | seconds | of plain | peak, MiB | lines |\n|---|---|---|---|---|---|")
        for job in arguments.jobs:
            mine = [way for way in ways if f"{job}_{way}" in globals()]
            found = {way: [] for way in mine}
            for _ in range(arguments.rounds):
                for way in mine:
                    if "gave up" not in found[way]:
                        found[way].append(measure(job, way, arguments))
            for way in mine:
                print(row(job, way, found), flush=True)
        os.chdir("/")


def row(job, way, found):
    good = [answer for answer in found[way] if isinstance(answer, dict)]
    bad = [answer for answer in found[way] if not isinstance(answer, dict)]
    if not good:
        return f"| {job} | {way} | {bad[0]} | - | - | {lines(job, way)} |"
    seconds = statistics.median(answer["seconds"] for answer in good)
    plain = statistics.median(answer["seconds"] for answer in found["plain"])
    peak = max(answer["peak"] for answer in good)
    note = f" ({len(bad)} of {len(found[way])} {bad[0]})" if bad else ""
    return f"| {job} | {way} | {seconds:.1f}{note} | {seconds / plain:.1f} | {peak} | {lines(job, way)} |"


def is_there(module):
    try:
        __import__(module)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
