"""gcc: a C++ library and its tests built with -j4, the object files compared, the tests run."""

from debian import output, unpack_source
from harness import Step, WORK, digest

PACKAGES = ["g++", "clang", "make", "cmake", "dpkg-dev"]
WHAT = "fmt of Debian's sources and its tests, templates above all, by `make -j4`, object by object; the tests run"
BUILDS = {"g++ -O2": ("g++", "-O2"), "g++ -O0 -g3": ("g++", "-O0 -g3"), "clang++ -O1": ("clang++", "-O1")}
OBJECTS = "find . -name '*.o' | LC_ALL=C sort | xargs sha256sum"


def version():
    return "g++ " + output("g++", "-dumpfullversion") + ", clang++ " + output("clang++", "-dumpversion")


def directory(name):
    return name.replace(" ", "").replace("+", "x")


def prepare(tree):
    source = WORK / "gcc" / "source"
    unpack_source("fmtlib", source)
    output("cp", "-a", source, tree / "source")


def steps(tree):
    for name, (compiler, flags) in BUILDS.items():
        configure = f"cmake -S ../source -B . -DCMAKE_CXX_COMPILER={compiler} -DCMAKE_CXX_FLAGS='{flags}' -DFMT_DOC=OFF"
        build = "make -j4 fmt format-test chrono-test ranges-test core-test"
        tests = "for test in format chrono ranges core; do bin/$test-test >log 2>&1; echo $test $?; done"
        yield Step(name, f"mkdir {directory(name)} && cd {directory(name)} && {{ {configure} && {build}; }} >log 2>&1"
                   f" || tail -n 30 log; {OBJECTS}; {tests}", timeout=600, read=digest)
