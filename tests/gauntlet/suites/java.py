"""OpenJDK: a heap many times the limit under each collector, threads, child processes."""

import shutil

from debian import output, run_logged
from harness import HERE, Step, WORK, digest

PACKAGES = ["openjdk-17-jdk-headless"]
ATTACHED = True
WHAT = "a heap of 400 MB under five collectors, four threads, child processes, the compiler"
COLLECTORS = ["Serial", "Parallel", "G1", "Z", "Shenandoah"]
JAVA = "/usr/lib/jvm/java-17-openjdk-amd64/bin/java"


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "openjdk-17-jdk-headless")


def prepare(tree):
    shutil.copy(HERE / "programs" / "Heap.java", tree)
    run_logged([f"{JAVA}c", "Heap.java"], WORK / "java" / "build.log", cwd=tree)


def steps(tree):
    for collector in COLLECTORS:
        yield Step(f"heap, {collector}", [JAVA, "-Xmx1g", f"-XX:+Use{collector}GC", "Heap", "heap"],
                   timeout=400, read=digest)
    yield Step("threads", [JAVA, "-Xmx512m", "Heap", "threads"], timeout=400, read=digest)
    yield Step("children", [JAVA, "-Xmx128m", "Heap", "children"], timeout=400, read=digest)
    yield Step("javac", f"{JAVA}c -d out Heap.java && cat out/*.class | sha256sum", timeout=400, read=digest)
