"""Programs without glibc, or with another allocator in it: busybox, musl, Rust, tcmalloc, jemalloc, mimalloc."""

from debian import output, run_logged
from harness import HERE, Step, WORK, digest

ALLOCATORS = {"tcmalloc": "tcmalloc_minimal", "jemalloc": "jemalloc", "mimalloc": "mimalloc"}
PACKAGES = ["busybox-static", "musl-tools", "gcc", "libc6-dev", "libgoogle-perftools-dev", "libjemalloc-dev", "libmimalloc-dev"]
ATTACHED = True
WHAT = "four threads with blocks of all sizes, linked with glibc, statically, with musl, three other allocators; Rust; busybox"


def version():
    return output("dpkg-query", "-W", "-f", "${Package} ${Version}, ", "musl", "libjemalloc2", "busybox-static").strip(", ")


def prepare(tree):
    log = WORK / "linked" / "build.log"
    c, rust = HERE / "programs" / "blocks.c", HERE / "programs" / "blocks.rs"
    cc = ["cc", "-O2", "-pthread", c]
    run_logged([*cc, "-o", tree / "glibc"], log)
    run_logged([*cc, "-static", "-o", tree / "static"], log)
    run_logged(["musl-gcc", "-O2", "-static", "-pthread", c, "-o", tree / "musl"], log)
    for name, library in ALLOCATORS.items():
        run_logged([*cc, "-o", tree / name, f"-l{library}"], log)
    # With the compiler that Overspill is built with.
    run_logged(["rustc", "-O", "-C", "target-feature=+crt-static", "-o", tree / "rust", rust], log)


def steps(tree):
    for name in ("glibc", "static", "musl", *ALLOCATORS, "rust"):
        yield Step(name, [f"./{name}"], read=digest, quick=name == "musl")
    yield Step("busybox", "busybox seq 1 1500000 | busybox sort -r | md5sum", read=digest)
