"""gcc: a C++ library built with -j4, its object files compared, its tests run."""

from debian import output, unpack_source
from harness import Step, WORK, digest

PACKAGES = ["g++", "make", "binutils", "dpkg-dev", "clang"]
WHAT = "re2 of Debian's sources built with `make -j4`: optimised, with debugging information, with LTO; its tests"
OBJECTS = "find obj -name '*.o' | LC_ALL=C sort | xargs sha256sum | sha256sum"
MAKE = "make -j4 obj/libre2.a obj/test/re2_test obj/test/regexp_test CXX={} CXXFLAGS='{} -frandom-seed=1' >$TMPDIR/log 2>&1"


def version():
    return output("g++", "-dumpfullversion")


def prepare(tree):
    source = WORK / "gcc" / "source"
    unpack_source("re2", source)
    output("cp", "-a", f"{source}/.", str(tree))


def steps(tree):
    for name, (compiler, flags) in {"g++ -O2": ("g++", "-O2"), "g++ -O3 -g3": ("g++", "-O3 -g3"),
                                    "g++ -O2 -flto": ("g++", "-O2 -flto=2"), "clang++ -O2": ("clang++", "-O2")}.items():
        build = MAKE.format(compiler, flags)
        yield Step(name, f"rm -rf obj; {build} || tail -n 30 $TMPDIR/log; {OBJECTS}; "
                   "obj/test/re2_test | tail -n 1; obj/test/regexp_test | tail -n 1", timeout=500, read=digest)
