"""Perl: the core tests of its source package, run by Debian's perl, each file a step."""

import re

from debian import output, unpack_source
from harness import Step, WORK

PACKAGES = ["perl", "dpkg-dev"]
WHAT = "the files `t/{base,cmd,comp,io,mro,op,opbasic,re,run,uni}/*.t` of its source"
DIRECTORIES = "base cmd comp io mro op opbasic re run uni".split()
QUICK = {"op/fork.t", "op/sort.t", "op/threads.t", "re/pat.t"}
RESULT = re.compile(r"^(not )?ok\b *(\d*)[^#\n]*(# *(?:TODO|skip))?", re.MULTILINE | re.IGNORECASE)


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "perl")


def libraries():
    """Where this perl has its modules."""
    paths = output("perl", "-MConfig", "-e", "print qq($_\\n) for @Config{qw(privlib archlib)}, grep m{perl-base}, @INC")
    return [f"{path}/." for path in paths.split()]


def prepare(tree):
    source = WORK / "perl" / "source"
    unpack_source("perl", source)
    output("cp", "-a", source / "t", tree / "t")
    (tree / "perl").symlink_to("/usr/bin/perl")
    (tree / "t" / "perl").symlink_to("/usr/bin/perl")
    for path in libraries():
        output("cp", "-a", path, tree / "lib")


def read(finished):
    """Which tests failed. Numbers may come from several processes at once, so they are counted."""
    results = RESULT.findall(finished.text)
    failed = [number for wrong, number, excuse in results if wrong and not excuse]
    said = f"{len(results)} tests" + (f", failed: {' '.join(failed)}" if failed else "")
    return {"tests": f"failed: {said}" if failed else f"passed: {said}"}


def steps(tree):
    for directory in DIRECTORIES:
        for path in sorted((tree / "t" / directory).glob("*.t")):
            name = f"{directory}/{path.name}"
            yield Step(name, ["./perl", "-I../lib", name], read=read, quick=name in QUICK, directory="t")
