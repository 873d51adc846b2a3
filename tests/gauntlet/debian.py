"""Debian's packages and sources: installed and unpacked only if they are not there."""

import fcntl
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

from harness import WORK

POLICY = Path("/usr/sbin/policy-rc.d")
SYSTEM_SOURCES = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]


class Unavailable(Exception):
    """Why a suite cannot run here."""


def output(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout.strip()


def version_of(package):
    """The installed version, or None."""
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package],
                           capture_output=True, text=True).stdout.split()
    return shown[1] if shown[:1] == ["installed"] else None


def run_logged(command, log, **options):
    """Runs a command whose output matters only if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a") as file:
        file.write(f"+ {command}\n")
        file.flush()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, **options)
    if done.returncode != 0:
        raise Unavailable(f"{command[0]} failed: see {log}")


@contextmanager
def only_one():
    """Of the gauntlets that run side by side: apt refuses the second."""
    WORK.mkdir(parents=True, exist_ok=True)
    with open(WORK / "apt.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(packages):
    missing = [name for name in packages if version_of(name) is None]
    if not missing:
        return
    if os.geteuid() != 0:
        raise Unavailable(f"only root can install {' '.join(missing)}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    log = WORK / "packages.log"
    with only_one(), no_service_starts():
        run_logged(["apt-get", "update", "-q"], log)
        run_logged(["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing], log,
                   env=environment)


@contextmanager
def no_service_starts():
    made = not POLICY.exists()
    if made:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if made:
            POLICY.unlink()


def source_options():
    """Options for apt-get with lists of sources of its own: the system's, asked for source packages."""
    home = WORK / "apt"
    (home / "parts").mkdir(parents=True, exist_ok=True)
    (home / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    for path in SYSTEM_SOURCES:
        if path.suffix == ".sources":
            (home / "parts" / path.name).write_text(
                path.read_text().replace("Types: deb\n", "Types: deb-src\n"))
        elif path.suffix == ".list" and path.is_file():
            lines = [line for line in path.read_text().splitlines() if line.startswith("deb ")]
            (home / "parts" / path.name).write_text(
                "".join(f"deb-src {line[4:]}\n" for line in lines))
    return ["-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={home / 'parts'}",
            "-o", f"Dir::State::lists={home / 'lists'}", "-o", "APT::Sandbox::User=root"]


def download_source(package, downloads, log):
    """The newest version that can be had: not every mirror has the sources of security updates."""
    options = source_options()
    run_logged(["apt-get", *options, "update", "-q"], log)
    shown = output("apt-cache", *options, "showsrc", package)
    versions = [line.split()[1] for line in shown.splitlines() if line.startswith("Version: ")]
    for version in reversed(sorted(set(versions), key=versions.index)):
        try:
            return run_logged(["apt-get", *options, "source", "-q", "--download-only", f"{package}={version}"],
                              log, cwd=downloads)
        except Unavailable as reason:
            failure = reason
    raise failure


def unpack_source(package, directory):
    """Unpacks the source of `package`, with Debian's patches, to `directory`."""
    if directory.exists():
        return
    log = WORK / "packages.log"
    downloads = WORK / "downloads" / package
    downloads.mkdir(parents=True, exist_ok=True)
    if not list(downloads.glob("*.dsc")):
        with only_one():
            download_source(package, downloads, log)
    [description] = downloads.glob("*.dsc")
    partial = directory.with_name(directory.name + ".partial")
    subprocess.run(["rm", "-rf", partial], check=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    run_logged(["dpkg-source", "--no-check", "-x", str(description), str(partial)], log)
    partial.rename(directory)
