"""stress-ng: each stressor of its class vm, and some that move memory about, verifying what they read."""

import re

from debian import output
from harness import Step

PACKAGES = ["stress-ng"]
WHAT = "`stress-ng --STRESSOR 1 --timeout 3 --verify`, one by one"
# Of class vm, less those that would exhaust the machine (bigheap, brk, swap; resources fills the disk, dev-shm half of
# the memory) or need the kernel's modules; and more.
STRESSORS = """
bad-altstack env fork malloc matrix memcpy memfd memthrash mincore mlock mlockmany mmap mmapaddr mmapfixed
mmapfork mmaphuge mmapmany mprotect mremap msync msyncmany munmap pageswap physpage pipe pthread qsort remap rmap
shellsort shm shm-sysv stack stackmmap str tlb-shootdown tmpfs tree userfaultfd vfork vm vm-addr vm-rw vm-segv
vm-splice zlib
""".split()
METHODS = """
flip galpat-0 galpat-1 gray grayflip incdec inc-nybble rand-set rand-sum read64 ror swap move-inv modulo-x mscan
prime-0 prime-1 prime-gray-0 prime-incdec prime-walk-0 walk-0d walk-1d walk-0a walk-1a write64 zero-one checkerboard
""".split()
QUICK = {"malloc", "mremap", "vm method move-inv"}
SIZES = {"vm": "64M", "malloc": "1M", "mmap": "64M", "mremap": "16M", "vm-rw": "16M"}


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "stress-ng")


def stress(stressor, *options):
    size = [f"--{stressor}-bytes", SIZES[stressor]] if stressor in SIZES else []
    return ["stress-ng", f"--{stressor}", "1", *size, *options, "--verify", "--timeout", "3", "--no-rand-seed"]


def read(finished):
    """Words of failure; what else it prints are times."""
    bad = [line.split("] ", 1)[-1] for line in finished.text.splitlines() if "fail:" in line]
    bad = [re.sub("0x[0-9a-f]+", "0x...", line) for line in bad]
    return {"verified": f"failed: {bad[0]}" if bad else "passed"}


def steps(tree):
    for stressor in STRESSORS:
        yield Step(stressor, stress(stressor), timeout=90, read=read, quick=stressor in QUICK)
    for method in METHODS:
        name = f"vm method {method}"
        yield Step(name, stress("vm", "--vm-method", method), timeout=90, read=read, quick=name in QUICK)
