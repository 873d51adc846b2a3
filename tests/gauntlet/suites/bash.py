"""bash: the tests of its source package, each file a step."""

import re

from debian import output, run_logged, unpack_source
from harness import Finished, Step, WORK, digest

PACKAGES = ["bash", "dpkg-dev", "gcc", "libc6-dev"]
WHAT = "the files `tests/run-*` of its source"
HEADERS = ["-DHAVE_STDLIB_H", "-DHAVE_STRING_H", "-DHAVE_UNISTD_H", "-include", "stdlib.h", "-include", "string.h"]
LEFT_OUT = {"run-all", "run-minimal", "run-gprof"}  # as run-all leaves them out
QUICK = {"run-array", "run-comsub", "run-heredoc", "run-ifs-posix", "run-intl", "run-quote", "run-redir", "run-varenv"}


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "bash")


def prepare(tree):
    source = WORK / "bash" / "source"
    unpack_source("bash", source)
    output("cp", "-a", source / "tests", tree / "tests")
    (source / "config.h").touch()  # what configure would find is told to the compiler
    for helper in ("recho", "zecho", "printenv", "xcase"):
        run_logged(["cc", "-w", *HEADERS, "-I.", "-Iinclude", "-o", tree / "tests" / helper,
                    f"support/{helper}.c"], WORK / "bash" / "build.log", cwd=source)


def read(finished):
    """The output, less the numbers of processes."""
    return digest(Finished(re.sub(r"group \(\d+\)", "group", finished.text), finished.directory))


def steps(tree):
    for path in sorted((tree / "tests").glob("run-*")):
        if path.name not in LEFT_OUT:
            yield Step(
                path.name, f"PATH=.:$PATH BASH_TSTOUT=$TMPDIR/out THIS_SH=/bin/bash BUILD_DIR=.. sh ./{path.name}",
                timeout=120, read=read, quick=path.name in QUICK, directory="tests")
