"""Servers: etcd and promtool (Go), MariaDB, HAProxy, memcached with large values."""

import json
import re
import shutil

from debian import output
from harness import HERE, ROOT_C, Step, digest

PACKAGES = ["etcd-server", "etcd-client", "prometheus", "mariadb-server", "haproxy", "memcached", "python3"]
ATTACHED = True
WHAT = "etcd filled and read, and its `check perf`; `promtool tsdb bench write`; MariaDB installed, filled and read; 300 MiB " \
       "through HAProxy; 120 values of up to 1.5 MB in memcached"
SETTINGS = (ROOT_C,)
PROGRAMS = ["etcd.py", "mariadb.sh", "haproxy.sh", "memcached.py"]
SERIES = 2000


def version():
    return output("dpkg-query", "-W", "-f", "${Package} ${Version}, ", *PACKAGES[:-1]).strip(", ")


def prepare(tree):
    for name in PROGRAMS:
        shutil.copy(HERE / "programs" / name, tree)
    series = ({"__name__": f"metric_{n % 40}", "instance": f"host{n}"} for n in range(SERIES))
    (tree / "series").write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in series))


def benchmark(finished):
    """Whether it wrote as fast as etcd asks for; how long single requests took is not compared."""
    return {"throughput": "passed" if re.search("PASS: Throughput", finished.text) else "failed"}


def steps(tree):
    yield Step("etcd", ["python3", "etcd.py", "values"], timeout=400, read=digest)
    yield Step("etcdctl check perf", ["python3", "etcd.py", "perf"], timeout=400, read=benchmark)
    yield Step("promtool", f"promtool tsdb bench write --out=data --metrics={SERIES} --scrapes=2000 series >log 2>&1; "
               "promtool tsdb list data/storage | awk '{ print $(NF-3), $(NF-2), $(NF-1) }'", timeout=400, read=digest)
    yield Step("mariadb", ["sh", "mariadb.sh"], timeout=400, read=digest)
    yield Step("haproxy", ["sh", "haproxy.sh"], timeout=400, read=digest)
    yield Step("memcached", ["python3", "memcached.py"], timeout=400, read=digest, quick=True)
