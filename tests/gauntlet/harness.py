"""Runs one step of a suite, plain or under `overspill run`, and says what came of it.

A *step* is a command. What came of it is a table of *cases*, each with an outcome in words: `end` (how the
command ended), and what the step's reader finds in its output. A step that runs too long is ended, and
that is an outcome too. Processes are ended by their number: whatever a step started stays a descendant
of this process, even if it made a session of its own, because this process is a subreaper.
"""

import ctypes
import fcntl
import hashlib
import json
import os
import pwd
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

from traces import Watch, descendants, rollup_kib

HERE = Path(__file__).resolve().parent
ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "gauntlet"
OVERSPILL = Path(os.environ.get("OVERSPILL", TARGET / "release" / "overspill")).resolve()
SWAP = os.environ.get("GAUNTLET_SWAP", "compressed:4G")
WAY = os.environ.get("GAUNTLET_WAY", "")
DEVICE = Path("/dev/userfaultfd")
PR_SET_CHILD_SUBREAPER = 36
MIB = 1 << 20
SMALLEST_LIMIT_MIB = 4
# The way of a step that is started plain, and attached to at random moments.
ATTACHED = "attached"


@dataclass
class Finished:
    """A step that has ended: what its reader may look at."""

    text: str
    directory: Path


def nothing(finished):
    return {}


def digest(finished):
    """The reader for commands whose output is always the same."""
    if not finished.text:
        return {"output": "output: none"}
    return {"output": "output " + hashlib.sha256(finished.text.encode()).hexdigest()[:12]}


@dataclass
class Step:
    name: str
    command: list | str  # a string is for sh
    timeout: int = 300  # seconds
    read: Callable[[Finished], dict] = nothing
    quick: bool = False  # part of `make gauntlet-quick`
    directory: str = "."  # below the suite's tree
    environment: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """As whom and in which locale."""

    user: str  # "root" or "user"
    locale: str

    def __str__(self):
        return f"{self.user}, {self.locale}"


ROOT_C = Setting("root", "C")
USER_UTF8 = Setting("user", "C.UTF-8")


def ordinary_user():
    """Whoever runs this, or nobody if that is root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())


class Turn:
    """Holds the file GAUNTLET_LOCK, for some minutes at a time: for machines shared with others."""

    SECONDS = 240
    name = os.environ.get("GAUNTLET_LOCK")
    file = None
    taken = 0.0

    @classmethod
    def take(cls):
        if cls.name and cls.file and time.monotonic() - cls.taken > cls.SECONDS:
            cls.file.close()
            cls.file = None
            time.sleep(1)
        if cls.name and not cls.file:
            cls.file = open(cls.name, "a")
            fcntl.flock(cls.file, fcntl.LOCK_EX)
            cls.taken = time.monotonic()


@contextmanager
def userfaultfd_for_users():
    """Lets the ordinary user's group open /dev/userfaultfd, and takes that back."""
    if os.geteuid() != 0 or not DEVICE.exists():
        yield
        return
    before = DEVICE.stat()
    if before.st_gid == ordinary_user().pw_gid and before.st_mode & 0o060 == 0o060:
        yield  # somebody else has done so, and takes it back
        return
    os.chown(DEVICE, before.st_uid, ordinary_user().pw_gid)
    os.chmod(DEVICE, 0o660)
    try:
        yield
    finally:
        os.chown(DEVICE, before.st_uid, before.st_gid)
        os.chmod(DEVICE, before.st_mode & 0o7777)


def become_subreaper():
    """From here on orphans are ours; and a signal that ends us unwinds what is to be put back."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children():
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def end_descendants():
    """Kills what is left, generation by generation: orphans become our children. Returns the largest
    resident size that one of them had, in KiB."""
    peak_kib = 0
    while remaining := children():
        for pid in remaining:
            os.kill(pid, signal.SIGKILL)
        for pid in remaining:
            peak_kib = max(peak_kib, os.wait4(pid, 0)[2].ru_maxrss)
    return peak_kib


@contextmanager
def own_directory(name):
    """A directory that is gone afterwards, and with it what was started meanwhile."""
    become_subreaper()
    directory = Path(tempfile.mkdtemp(prefix=f"overspill-{name}.", dir="/var/tmp"))
    try:
        yield directory
    finally:
        end_descendants()
        shutil.rmtree(directory)


def compile_program(source, directory):
    subprocess.run(["cc", "-O2", "-w", "-pthread", "-o", directory / source.stem, source], check=True)


def build_id():
    """Changes with the program under test."""
    digest = hashlib.sha256()
    for path in (OVERSPILL, OVERSPILL.with_name("overspill-forks")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def scratch_of(suite):
    """A directory with a short name (sockets), the same for every way: paths are part of output."""
    tag = hashlib.sha256(str(ROOT).encode()).hexdigest()[:6]
    return Path("/var/tmp") / f"gauntlet-{tag}-{suite}"


@contextmanager
def scratch_copy(suite, setting):
    """A fresh copy of the suite's tree that belongs to the user of this setting."""
    scratch = scratch_of(suite)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o755)
    (scratch / "tmp").mkdir()
    tree = WORK / suite / "tree"
    tree.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--reflink=auto", tree, scratch / "tree"], check=True)
    if os.geteuid() == 0:
        owner = ordinary_user() if setting.user == "user" else pwd.getpwuid(0)
        owned = f"{owner.pw_uid}:{owner.pw_gid}"
        subprocess.run(["chown", "-R", owned, scratch], check=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def environment_of(setting, scratch, extra):
    account = ordinary_user() if setting.user == "user" else pwd.getpwuid(os.geteuid())
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(scratch / "tmp"),
        "TMPDIR": str(scratch / "tmp"),
        "LC_ALL": setting.locale,
        "LANG": setting.locale,
        "TERM": "dumb",
        "SHELL": "/bin/sh",
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        **extra,
    }


def limit_in_mib(limit, plain_peak_kib):
    if limit in ("quarter", ATTACHED):
        return max(SMALLEST_LIMIT_MIB, -(-plain_peak_kib // 4096))
    return int(limit.removesuffix("M"))


def find_key(tree, key):
    """The value of a key anywhere in JSON, or None."""
    if isinstance(tree, dict):
        if key in tree:
            return tree[key]
        tree = list(tree.values())
    if isinstance(tree, list):
        for value in tree:
            found = find_key(value, key)
            if found is not None:
                return found
    return None


def read_statistics(path):
    """What of --stats is kept: None where the file or a counter is missing."""
    try:
        statistics = json.loads(path.read_text())
    except (OSError, ValueError):
        statistics = {}
    return {key: find_key(statistics, key) for key in ("pages_in", "pages_out", "pages_lost")} | {
        "peak_kib": peak_bytes(statistics) // 1024,
    }


def peak_bytes(statistics):
    """The most that all processes had of the limit, or, with a pager in each, what one of them had resident."""
    return find_key(statistics, "held_bytes_max") or find_key(statistics, "peak_resident_bytes") or 0


def how_it_ended(code):
    if code is None:
        return "timed out"
    if code < 0:
        return f"signal {-code}"
    return "passed" if code == 0 else f"status {code}"


def wait_for(process, seconds):
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def same_start_for_all():
    """In the child: however we were started, in the background for instance."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o022)


def limited(command, limit, limit_mib, report, identity):
    """The command in its limit, and as whom that is started."""
    counted = ["--memory", f"{limit_mib}M", "--swap", SWAP, "--stats", str(report)]
    if limit == ATTACHED:
        user = ["--user", f"{identity['user']}:{identity['group']}"] if identity else []
        return [sys.executable, str(HERE / "attached.py"), "--overspill", str(OVERSPILL), *counted, *user, "--", *command], {}
    return [str(OVERSPILL), "run", "--quiet", *counted, *(["--way", WAY] if WAY else []), "--", *command], identity


def run_step(suite, step, limit, setting, scratch, plain):
    """Runs `step` once. `limit` is None for the plain run, whose record is otherwise in `plain`."""
    command = ["sh", "-c", step.command] if isinstance(step.command, str) else step.command
    account = ordinary_user() if setting.user == "user" and os.geteuid() == 0 else None
    identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
    report = scratch / "report"
    report.unlink(missing_ok=True)
    subprocess.run(["find", scratch / "tmp", "-mindepth", "1", "-delete"], check=True)
    timeout, limit_mib = step.timeout, None
    if limit is None:
        command = ["/usr/bin/time", "-q", "-f", "%M", "-o", str(report), *command]
    else:
        limit_mib = limit_in_mib(limit, plain["peak_kib"])
        # A hang is not to cost much; what takes minutes plain may take ten times as long.
        timeout = min(max(timeout, 20 * plain["seconds"]), 40 + 40 * plain["seconds"])
        command, identity = limited(command, limit, limit_mib, report, identity)
    log = log_of(suite, step, limit, setting)
    log.parent.mkdir(parents=True, exist_ok=True)
    directory = scratch / "tree" / step.directory
    Turn.take()
    with open(log, "w+b") as output:
        started = time.monotonic()
        process = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=environment_of(setting, scratch, step.environment), start_new_session=True,
            preexec_fn=same_start_for_all, **identity)
        watch = Watch(os.getpid(), lambda pid: rollup_kib(pid, "Pss_Anon"), 0.1) if limit is None else None
        try:
            code = wait_for(process, timeout)
            seconds = time.monotonic() - started
        finally:
            together_kib = watch.stop() if watch else 0
            left_kib = end_descendants()
    cases = {"end": how_it_ended(code)}
    cases |= step.read(Finished(log.read_text(errors="replace"), directory))
    record = {"cases": cases, "seconds": round(seconds, 2), "limit_mib": limit_mib}
    if limit is None:
        return record | {"peak_kib": max(peak_of(report), left_kib, together_kib)}
    record |= read_statistics(report)
    if record["pages_lost"]:
        cases["pages lost"] = f"{record['pages_lost']}"
    return record


def peak_of(report):
    """What GNU time wrote; the last line, because a first one may tell of a signal."""
    lines = report.read_text().split() if report.exists() else []
    return int(lines[-1]) if lines and lines[-1].isdigit() else 0


def log_of(suite, step, limit, setting):
    way = f"{limit or 'plain'}-{setting.user}-{setting.locale}"
    return WORK / suite / "logs" / way / (re.sub(r"[^\w.+-]+", "_", step.name) + ".log")
