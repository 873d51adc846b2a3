"""Redis: its `runtest`, each unit a step, with Debian's redis-server."""

import re
import socket

from debian import output, unpack_source
from harness import Step, WORK

PACKAGES = ["redis-server", "redis-tools", "tcl", "procps", "dpkg-dev"]
WHAT = "`runtest --single UNIT`, without tests tagged slow or large-memory; a replica has 100 s to catch up, not 5"
UNITS = """
unit/acl unit/aofrw unit/auth unit/bitops unit/client-eviction unit/dump unit/expire unit/functions unit/geo
unit/hyperloglog unit/info unit/introspection unit/keyspace unit/latency-monitor unit/lazyfree unit/limits
unit/maxmemory unit/memefficiency unit/multi unit/networking unit/obuf-limits unit/other unit/protocol unit/pubsub
unit/querybuf unit/scan unit/scripting unit/shutdown unit/sort unit/tracking unit/type/hash unit/type/incr
unit/type/list unit/type/list-2 unit/type/list-3 unit/type/set unit/type/stream unit/type/string unit/type/zset
unit/wait integration/aof integration/aof-multi-part integration/block-repl integration/corrupt-dump
integration/dismiss-mem integration/logging integration/psync2-reg integration/rdb integration/redis-benchmark
integration/redis-cli integration/replication integration/shutdown
""".split()
QUICK = {"unit/lazyfree", "unit/type/incr"}
RESULT = re.compile(r"^\[(ok|err|exception|skip|ignore)\]: (.*?)(?: in tests/.*|: .*| \(\d+ ms\))?$", re.MULTILINE)


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "redis-server")


def prepare(tree):
    source = WORK / "redis" / "source"
    unpack_source("redis", source)
    output("cp", "-a", source / "tests", source / "redis.conf", source / "sentinel.conf", source / "runtest", tree)
    patient = tree / "tests" / "support" / "util.tcl"
    text = patient.read_text()
    impatient = "proc wait_for_ofs_sync {r1 r2} {\n    wait_for_condition 50 100"
    assert impatient in text
    patient.write_text(text.replace(impatient, impatient.replace(" 50 ", " 1000 ")))
    (tree / "src").mkdir()
    for name in ("server", "cli", "benchmark", "check-aof", "check-rdb", "sentinel"):
        (tree / "src" / f"redis-{name}").symlink_to(f"/usr/bin/redis-{name}")


def read(finished):
    words = {"ok": "passed", "err": "failed", "exception": "failed", "skip": "skipped", "ignore": "skipped"}
    cases = {}
    for result, name in RESULT.findall(finished.text):
        if cases.get(name) != "failed":
            cases[name] = words[result]
    return cases


def claim_ports():
    """A thousand ports below the ephemeral ones; the last of them stays bound, so that they are ours until we end."""
    for first in range(10_000, 32_000, 1000):
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first + 999))
        except OSError:
            claim.close()
            continue
        return first, claim
    raise SystemExit("redis: no thousand ports between 10000 and 32000 are free of other gauntlets")


def steps(tree):
    first, claim = claim_ports()
    with claim:
        yield from units(base=first + 100)  # the suite's own server listens below its base


def units(base):
    for unit in UNITS:
        yield Step(
            unit, ["./runtest", "--single", unit, "--clients", "1", "--baseport", str(base), "--portcount", "800",
                   "--tags", "-slow", "--tags", "-large-memory", "--timeout", "1200"],
            read=read, quick=unit in QUICK)
