"""PHP: tests of its source package by `run-tests.php`, and a heap of our own."""

import re
import shutil

from debian import output, unpack_source
from harness import HERE, Step, WORK, digest

PACKAGES = ["php8.2-cli", "php8.2-opcache", "php8.2-xml", "php8.2-mbstring", "dpkg-dev"]
WHAT = "`run-tests.php` over directories of its source's tests; a heap of 300 MB, with and without opcache and its JIT"
DIRECTORIES = """
Zend/tests/closures Zend/tests/fibers Zend/tests/generators Zend/tests/match Zend/tests/traits Zend/tests/try
Zend/tests/weakrefs tests/basic tests/classes tests/func tests/lang tests/output tests/strings ext/json/tests
ext/opcache/tests ext/pcre/tests ext/spl/tests ext/standard/tests/array ext/standard/tests/general_functions
ext/standard/tests/serialize
""".split()
QUICK = {"Zend/tests/weakrefs"}
RESULT = re.compile(r"^(PASSED|FAILED|SKIPPED|BORKED|WARNED|LEAKED|XFAILED|XLEAKED)\t(\S+)", re.MULTILINE)


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "php8.2-cli")


def prepare(tree):
    source = WORK / "php" / "source"
    unpack_source("php8.2", source)
    shutil.copy(source / "run-tests.php", tree)
    shutil.copy(HERE / "programs" / "heap.php", tree)
    for directory in DIRECTORIES:
        (tree / directory).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source / directory, tree / directory, dirs_exist_ok=True)


def read(finished):
    path = finished.directory / "results"
    text = path.read_text(errors="replace") if path.exists() else ""
    path.unlink(missing_ok=True)
    words = {"PASSED": "passed", "SKIPPED": "skipped", "XFAILED": "passed"}
    return {name: words.get(result, "failed") for result, name in RESULT.findall(text)}


def steps(tree):
    for name, options in {"heap": [], "heap, opcache": ["-dopcache.enable_cli=1"],
                          "heap, JIT": ["-dopcache.enable_cli=1", "-dopcache.jit_buffer_size=16M"]}.items():
        yield Step(name, ["php", *options, "-dmemory_limit=-1", "heap.php"], read=digest)
    for directory in DIRECTORIES:
        yield Step(
            directory, ["php", "run-tests.php", "-p", "/usr/bin/php", "-q", "-x", "--offline", "-W", "results",
                        "--set-timeout", "60", directory],
            timeout=600, read=read, quick=directory in QUICK)
