"""R and Octave: matrices, sorting and data frames larger than the limit."""

import shutil

from debian import output
from harness import HERE, Step, digest

PACKAGES = ["r-base-core", "octave"]
WHAT = "matrices, sorting, aggregation and strings larger than the limit, in R and in Octave; R's byte compiler"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def version():
    return "R " + output("dpkg-query", "-W", "-f", "${Version}", "r-base-core") + ", Octave " + output(
        "dpkg-query", "-W", "-f", "${Version}", "octave")


def prepare(tree):
    for name in ("analysis.R", "analysis.m"):
        shutil.copy(HERE / "programs" / name, tree)


def steps(tree):
    yield Step("R", ["Rscript", "--vanilla", "analysis.R"], timeout=500, read=digest, environment=ONE_THREAD)
    yield Step("Octave", ["octave-cli", "--no-gui", "--norc", "--no-history", "--quiet", "analysis.m"], timeout=500, read=digest,
               environment=ONE_THREAD)
