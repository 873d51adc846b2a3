"""git: gc, repack with threads, fsck and clone of a repository of 300 MB that is made first."""

import subprocess

from debian import output
from harness import HERE, Step, digest

PACKAGES = ["git"]
WHAT = "`gc`, `repack` with two threads, `fsck`, `clone`, `log`, `blame` of a repository of 12000 commits"
OBJECTS = "git rev-list --objects --all | sha256sum; git cat-file --batch-all-objects --batch-check | sha256sum"


def version():
    return output("git", "--version")


def prepare(tree):
    repository = tree / "repository"
    output("git", "init", "-q", "--bare", "-b", "main", str(repository))
    made = subprocess.Popen(["python3", HERE / "programs" / "git_history.py"], stdout=subprocess.PIPE)
    subprocess.run(["git", "fast-import", "--quiet"], stdin=made.stdout, cwd=repository, check=True)
    made.wait()


def steps(tree):
    for name, command in {
        "gc": "git gc -q --prune=now && git fsck --full --strict",
        "repack": "git -c pack.threads=2 -c pack.windowMemory=64m repack -qadf --depth=50 --window=50",
        "fsck": "git fsck --full --strict",
        "clone": "git clone -q --no-local . $TMPDIR/clone && cd $TMPDIR/clone && cat $(git ls-files) | sha256sum",
        "log": "git log --stat -n 2000 | sha256sum; git log -S'line 77 ' --oneline | sha256sum",
        "blame": "git blame main -- file0 | sha256sum",
        "archive": "git archive main | sha256sum",
    }.items():
        yield Step(name, f"cp -a . $TMPDIR/{name} && cd $TMPDIR/{name} && git config --global safe.directory '*' "
                   f"&& {command}; echo $?; {OBJECTS}", timeout=400, read=digest, directory="repository", quick=name == "fsck")
