"""nginx: large answers held in memory by a proxy, fetched by many clients, workers that give up root's rights."""

import shutil

from debian import output
from harness import HERE, Step, digest

PACKAGES = ["nginx-light", "curl", "apache2-utils"]
WHAT = "a proxy that buffers answers of 6 MB in memory, 200 of them fetched by 20 clients, `ab`, a reload under load"


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "nginx-light")


def prepare(tree):
    for name in ("nginx.conf", "nginx.sh"):
        shutil.copy(HERE / "programs" / name, tree)


def steps(tree):
    for name in ("fetch", "reload"):
        yield Step(name, ["sh", "nginx.sh", name], timeout=200, read=digest, quick=name == "fetch")
