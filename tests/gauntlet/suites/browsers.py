"""Browsers: a page in Chromium and in Firefox, without a screen."""

import shutil

from debian import output
from harness import HERE, Step, digest

PACKAGES = ["chromium", "firefox-esr", "file"]
WHAT = "a page that writes itself: its source in Chromium, its picture in Firefox"


def version():
    return output("dpkg-query", "-W", "-f", "${Package} ${Version}, ", "chromium", "firefox-esr").strip(", ")


def prepare(tree):
    for name in ("chromium.sh", "firefox.sh"):
        shutil.copy(HERE / "programs" / name, tree)


def steps(tree):
    for name in ("chromium", "firefox"):
        yield Step(name, ["sh", f"{name}.sh"], timeout=300, read=digest)
