"""A guest booted by qemu without KVM to a shell, with a memory test in it."""

import shutil

from debian import Unavailable, output, run_logged
from harness import HERE, Step, WORK

PACKAGES = ["qemu-system-x86", "busybox-static", "cpio", "gcc", "libc6-dev"]
ATTACHED = True
WHAT = "Debian's kernel with 256 MiB booted to busybox's shell; 160 MiB filled and verified in the guest, five times"
KERNEL = "linux-image-cloud-amd64"


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "qemu-system-x86")


def fetch_kernel(directory):
    """Unpacks the package with the kernel; installing it would change how this machine starts."""
    depends = output("apt-cache", "depends", "--important", KERNEL).split()
    names = [word for word in depends if word.startswith("linux-image-") and word != KERNEL]
    if not names:
        raise Unavailable(f"there is no package {KERNEL}")
    directory.mkdir(parents=True, exist_ok=True)
    run_logged(["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", names[0]],
               WORK / "packages.log", cwd=directory)
    output("dpkg", "-x", str(next(directory.glob("*.deb"))), str(directory / "kernel"))
    return next((directory / "kernel" / "boot").glob("vmlinuz-*"))


def prepare(tree):
    shutil.copy(fetch_kernel(WORK / "qemu" / "download"), tree / "vmlinuz")
    root = WORK / "qemu" / "root"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "proc", "sys", "dev"):
        (root / name).mkdir(parents=True)
    shutil.copy("/usr/bin/busybox", root / "bin" / "busybox")
    for name in ("sh", "mount", "mknod", "free", "poweroff", "sha256sum", "seq", "sort"):
        (root / "bin" / name).symlink_to("busybox")
    run_logged(["cc", "-O2", "-static", "-o", root / "bin" / "memory_test", HERE / "programs" / "memory_test.c"],
               WORK / "qemu" / "build.log")
    (root / "init").write_text("#!/bin/sh\nmount -t proc proc /proc\nmount -t devtmpfs dev /dev\n"
                               "echo; echo 'the shell is' ready\nexec sh -i </dev/ttyS0 >/dev/ttyS0 2>&1\n")
    (root / "init").chmod(0o755)
    run_logged(["sh", "-c", f"cd {root} && find . | cpio -o -H newc | gzip >{tree}/initrd"], WORK / "qemu" / "build.log")
    shutil.copy(HERE / "programs" / "qemu.sh", tree)


def read(finished):
    """The lines that the commands typed in the guest printed."""
    text = finished.text.replace("\r", "")
    return {name: "passed" if wanted in text else "failed" for name, wanted in {
        "boots to a shell": "the shell is ready", "memory test": "memory: 0 wrong words",
        "sorting in the guest": "8085a84ab11df847", "powered off": "reboot: Power down"}.items()}


def steps(tree):
    for name, options in {"one CPU": "-smp 1", "two CPUs": "-smp 2"}.items():
        yield Step(name, f"sh qemu.sh {options}", timeout=600, read=read)
