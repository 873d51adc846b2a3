"""Node: a heap many times the limit, worker threads, child processes."""

import shutil

from debian import output
from harness import HERE, Step, digest

PACKAGES = ["nodejs"]
ATTACHED = True
WHAT = "a heap of 300 MB, four worker threads, 20 child processes, without and with collections forced"


def version():
    return output("node", "--version")


def prepare(tree):
    shutil.copy(HERE / "programs" / "heap.js", tree)


def steps(tree):
    for name, options in {"heap": [], "workers": [], "children": [], "heap, compacting": ["--gc-interval=20000"],
                          "heap, one thread": ["--single-threaded"]}.items():
        yield Step(name, ["node", *options, "heap.js", name.split(",")[0]], timeout=400, read=digest,
                   quick=name == "children")
