"""Go: a static program, one with C in it, tests and a part of the standard library."""

import re
import shutil

from debian import output, run_logged
from harness import HERE, Step, WORK, digest

PACKAGES = ["golang-go", "gcc", "libc6-dev"]
WHAT = "a static program and one with C in it, `go test sync os/exec net/http`, `go build net/http` without a cache"
TESTED = ["sync", "os/exec", "net/http"]


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "golang-go")


def prepare(tree):
    log = WORK / "go" / "build.log"
    home = {"HOME": str(WORK / "go"), "PATH": "/usr/bin:/bin", "GO111MODULE": "off"}
    for name, cgo in {"blocks": "0", "blocks_cgo": "1"}.items():
        shutil.copy(HERE / "programs" / f"{name}.go", tree)
        run_logged(["go", "build", "-o", name, f"{name}.go"], log, cwd=tree, env=home | {"CGO_ENABLED": cgo})


def packages(finished):
    """What each package came to; times differ."""
    return {name: {"ok": "passed", "FAIL": "failed"}[end]
            for end, name in re.findall(r"^(ok|FAIL)\s+(\S+)\s+[\d.]+s$", finished.text, re.MULTILINE)}


def steps(tree):
    yield Step("static", ["./blocks"], read=digest, quick=True)
    yield Step("with C", ["./blocks_cgo"], read=digest)
    yield Step("go build", "GOCACHE=$TMPDIR/cache go build net/http && echo built", timeout=900, read=digest)
    for name in TESTED:
        yield Step(f"go test {name}", ["go", "test", "-short", name], timeout=1200, read=packages)
