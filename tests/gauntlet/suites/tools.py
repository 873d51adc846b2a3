"""Programs that start, trace or enclose others: parallel, bubblewrap, unshare, strace, gdb, valgrind, perf."""

import shutil

from debian import output
from harness import HERE, ROOT_C, Finished, Step, compile_program, digest

PACKAGES = ["parallel", "bubblewrap", "util-linux", "strace", "gdb", "valgrind", "linux-perf", "gcc", "libc6-dev"]
WHAT = "sorts in GNU parallel, in namespaces, under strace and valgrind; threads under gdb and perf"
SETTINGS = (ROOT_C,)
SORT = "seq 1 1500000 | sort -r -S 200M | md5sum"


def version():
    return output("dpkg-query", "-W", "-f", "${Package} ${Version}, ", *PACKAGES[:6]).strip(", ")


def prepare(tree):
    compile_program(HERE / "programs" / "blocks.c", tree)
    shutil.copy(HERE / "programs" / "blocks.c", tree)


def traced(finished):
    """The output without the line that says that what is traced is outside the limit."""
    lines = [line for line in finished.text.splitlines(True) if not line.startswith("overspill: ")]
    return digest(Finished("".join(lines), finished.directory))


def steps(tree):
    yield Step("parallel", "seq 1 60 | parallel -j4 'head -c {}00000 /dev/zero | sort | md5sum; echo {}' | sort | md5sum", read=digest)
    yield Step("bubblewrap", ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "sh", "-c", SORT],
               read=digest)
    yield Step("unshare -pf", ["unshare", "-pf", "sh", "-c", SORT], read=digest, quick=True)
    yield Step("strace -f", ["strace", "-f", "-o", "/dev/null", "sh", "-c", "seq 1 600000 | sort -r -S 100M | md5sum"], read=traced)
    yield Step("gdb", "gdb -q -batch -ex run --args ./blocks 2>/dev/null | grep ^0x", read=traced)
    yield Step("valgrind", ["valgrind", "-q", "sort", "-r", "-S", "60M", "blocks.c"], read=digest)
    yield Step("perf", "perf record -q -o /dev/null ./blocks", read=digest)
