"""How much memory a tree of processes has over time: looked at, and drawn."""

import os
import threading
import time
from pathlib import Path


def descendants(pid):
    """The processes below `pid`, nearest first. Those that end meanwhile are left out."""
    found = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            children = Path(f"/proc/{pid}/task/{thread}/children").read_text()
        except OSError:
            continue
        found += [int(child) for child in children.split()]
    return found + [below for child in found for below in descendants(child)]


class Watch:
    """Samples until it is stopped: seconds, KiB, processes. `kib_of` says what a process has, None if it does not count."""

    def __init__(self, root, kib_of, pause_seconds):
        self.samples, self.over, self.begun = [], False, time.monotonic()
        self.thread = threading.Thread(target=self.watch, args=(root, kib_of, pause_seconds), daemon=True)
        self.thread.start()

    def watch(self, root, kib_of, pause_seconds):
        while not self.over:
            sizes = [size for size in map(kib_of, descendants(root)) if size is not None]
            self.samples.append((time.monotonic() - self.begun, sum(sizes), len(sizes)))
            time.sleep(pause_seconds)

    def stop(self):
        """Returns the most that there was, in KiB."""
        self.over = True
        self.thread.join()
        return max((kib for _, kib, _ in self.samples), default=0)


def rollup_kib(pid, field):
    """A line of what a process has in all; None if it has ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in rollup if line.startswith(f"{field}:")), None)


def name_of(pid):
    """None if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        return None


def private_kib(name):
    """Of each process of that name, what it has of private memory: a page that several have counts once."""

    def kib_of(pid):
        return rollup_kib(pid, "Pss_Anon") if (name_of(pid) or "").startswith(name) else None

    return kib_of


def pyplot():
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot
    return pyplot


def plot(traces, limits_mib, beside_mib, file, pyplot):
    """One below the other, each with its limit; and that with what each process may have beside it, if it may."""
    figure, plots = pyplot.subplots(len(traces), 1, figsize=(8, 2.4 * len(traces)), layout="constrained", squeeze=False)
    for (name, samples), axes in zip(traces.items(), plots[:, 0]):
        times, sizes, processes = zip(*samples)
        limit_mib = limits_mib[name]
        axes.plot(times, [kib / 1024 for kib in sizes], label="all processes")
        if beside_mib:
            axes.plot(times, [limit_mib + beside_mib * count for count in processes],
                      label=f"limit and {beside_mib} MiB for each process")
        axes.axhline(limit_mib, linestyle=":", color="grey", label="limit")
        axes.set(title=name, xlabel="s", ylabel="MiB", ylim=(0, None))
        axes.legend(fontsize="small")
    figure.savefig(file)
