"""SQLite: speedtest1 over Debian's library, and files of its own tests by a testfixture that is built."""

import re

from debian import output, run_logged, unpack_source
from harness import Step, WORK

PACKAGES = ["libsqlite3-dev", "gcc", "libc6-dev", "make", "tcl", "tcl-dev", "dpkg-dev"]
WHAT = "`speedtest1 --verify` in memory and on a file, and files of `test/*.test` by `testfixture`"
TESTS = """
alter altercol analyze autovacuum backup blob cache capi3 cast collate1 corrupt2 cost crash2 cte delete fkey2 fts3aa
func in incrblob index insert join like limit lock malloc malloc3 mallocA memdb memsubsys1 memsubsys2 mmap1 pager1
pragma printf randexpr1 rowid savepoint select1 select6 shared sort subquery thread001 thread002 trans trigger1 update
vacuum view wal walthread where window1 with1 zeroblob
""".split()


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "libsqlite3-dev")


def prepare(tree):
    source = WORK / "sqlite" / "source"
    log = WORK / "sqlite" / "build.log"
    unpack_source("sqlite3", source)
    run_logged(["cc", "-O2", "-o", tree / "speedtest1", source / "test" / "speedtest1.c", "-lsqlite3"], log)
    if not (source / "testfixture").exists():
        run_logged(["./configure", "--disable-shared", "CFLAGS=-O1"], log, cwd=source)
        run_logged(["make", "-j2", "testfixture"], log, cwd=source)
    output("cp", "-a", source / "test", source / "ext", source / "testfixture", tree)


def hashes(finished):
    """The only line that is not about time."""
    return {"hash": "output " + " ".join(re.findall(r"Verification Hash: .*", finished.text))}


def errors(finished):
    """Which cases failed, and how many there were."""
    count = re.search(r"(\d+) errors out of (\d+) tests", finished.text)
    failed = re.search(r"!Failures on these tests: (.*)", finished.text)
    if not count:
        return {}
    return {"tests": f"failed: {failed[1]}" if failed else f"passed: {count[2]} tests"}


def steps(tree):
    for name, options in {
        "speedtest1 in memory": ["--memdb", "--size", "60"],
        "speedtest1 on a file": ["--size", "30", "--cachesize", "20000", "--nosync"],
        "speedtest1 sorting threads": ["--memdb", "--size", "40", "--threads", "2"],
        "speedtest1, small": ["--memdb", "--size", "10"],
    }.items():
        yield Step(name, ["./speedtest1", "--verify", *options, *([] if "--memdb" in options else ["speed.db"])],
                   timeout=600, read=hashes, quick=name.endswith("small"))
    for name in TESTS:
        if (tree / "test" / f"{name}.test").exists():
            yield Step(name, ["./testfixture", f"test/{name}.test"], read=errors)
