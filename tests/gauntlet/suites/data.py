"""Programs for data: LuaJIT, Polars, DuckDB."""

import shutil

from debian import output, run_logged
from harness import HERE, Step, WORK, digest

PACKAGES = ["luajit", "python3-pip"]
WHEELS = ["polars", "duckdb"]
WHAT = "a table of 600000 tables in LuaJIT; groups, sorts, joins and distinct values of two million rows in Polars and DuckDB"


def version():
    return output("dpkg-query", "-W", "-f", "${Package} ${Version}", "luajit")


def prepare(tree):
    for name in ("blocks.lua", "polars_frames.py", "duckdb_query.py"):
        shutil.copy(HERE / "programs" / name, tree)
    run_logged(["python3", "-m", "pip", "install", "-q", "--target", tree / "site", *WHEELS], WORK / "data" / "build.log")


def steps(tree):
    yield Step("luajit", ["luajit", "blocks.lua"], read=digest, quick=True)
    for name in ("polars_frames", "duckdb_query"):
        yield Step(name.split("_")[0], ["python3", f"{name}.py"], timeout=400, read=digest, environment={"PYTHONPATH": "site"})
