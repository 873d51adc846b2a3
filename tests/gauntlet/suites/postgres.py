"""PostgreSQL: its regression tests by pg_regress, and pgbench with connections coming and going."""

import os
import re
import shutil

from debian import output, run_logged, unpack_source
from harness import HERE, Step, USER_UTF8, WORK, digest

PACKAGES = ["postgresql-15", "postgresql-contrib", "postgresql-server-dev-15", "gcc", "libc6-dev", "dpkg-dev"]
SETTINGS = (USER_UTF8,)  # it does not run as root
SECONDS = int(os.environ.get("PGBENCH_SECONDS", 60))
ATTACHED = True
WHAT = f"`pg_regress` over its parallel schedule, `pgbench -C` and lasting connections, {SECONDS} s each"
HOME = "/usr/lib/postgresql/15"
RESULT = re.compile(r"^(?:test |     )\s*(\S+)\s+\.\.\. (ok|FAILED|failed)", re.MULTILINE)


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "postgresql-15")


def prepare(tree):
    source = WORK / "postgres" / "source"
    unpack_source("postgresql-15", source)
    shutil.copytree(source / "src" / "test" / "regress", tree / "regress")
    shutil.copy(HERE / "programs" / "pgbench.sh", tree)
    headers = output("pg_config", "--includedir-server")
    modules = [("regress", source / "src" / "test" / "regress" / "regress.c"),
               ("refint", source / "contrib" / "spi" / "refint.c"),
               ("autoinc", source / "contrib" / "spi" / "autoinc.c")]
    for name, code in modules:
        run_logged(["cc", "-w", "-O1", "-shared", "-fPIC", f"-I{headers}", "-o", tree / "regress" / f"{name}.so",
                    code], WORK / "postgres" / "build.log")


def read(finished):
    return {name: "passed" if result == "ok" else "failed" for name, result in RESULT.findall(finished.text)}


def steps(tree):
    yield Step(
        "pg_regress", [f"{HOME}/lib/pgxs/src/test/regress/pg_regress", f"--bindir={HOME}/bin", "--inputdir=.",
                       "--outputdir=.", "--dlpath=.", "--temp-instance=instance", "--no-locale", "--port=31432",
                       "--max-concurrent-tests=20", "--schedule=parallel_schedule"],
        timeout=1200, read=read, directory="regress")
    for name, option in {"pgbench -C": "-C", "pgbench": ""}.items():
        yield Step(name, ["sh", "pgbench.sh", f"{HOME}/bin", str(SECONDS), option], timeout=SECONDS + 300, read=digest)
    yield Step("pgbench, short", ["sh", "pgbench.sh", f"{HOME}/bin", "5", "-C"], timeout=200, read=digest, quick=True)
