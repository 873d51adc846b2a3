"""Go: a static program, one with C in it, tests and a part of the standard library."""

import re
import shutil

from debian import output, run_logged
from harness import HERE, Step, WORK, digest

PACKAGES = ["golang-go", "gcc", "libc6-dev"]
ATTACHED = True
WHAT = "a static program and one with C in it, `go test sync os/exec net/http`, `go build -a net/http`"
TESTED = ["sync", "os/exec", "net/http"]


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "golang-go")


def prepare(tree):
    log = WORK / "go" / "build.log"
    home = {"HOME": str(WORK / "go"), "PATH": "/usr/bin:/bin", "GO111MODULE": "off"}
    for name, cgo in {"blocks": "0", "blocks_cgo": "1"}.items():
        shutil.copy(HERE / "programs" / f"{name}.go", tree)
        run_logged(["go", "build", "-o", name, f"{name}.go"], log, cwd=tree, env=home | {"CGO_ENABLED": cgo})


def tests(finished):
    """What each test came to; times differ, and so does which of the parallel ones ends first."""
    return {name: {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}[end]
            for end, name in re.findall(r"^--- (PASS|FAIL|SKIP): (\S+)", finished.text, re.MULTILINE)}


def steps(tree):
    yield Step("static", ["./blocks"], read=digest, quick=True)
    yield Step("with C", ["./blocks_cgo"], read=digest)
    yield Step("go build", "GOCACHE=$TMPDIR/cache go build -a net/http && echo built", timeout=900, read=digest)
    for name in TESTED:
        yield Step(f"go test {name}", ["go", "test", "-short", "-v", name], timeout=1200, read=tests)
