#!/usr/bin/env python3
"""Run a command under Docker's default seccomp profile and capability set.

    docker_seccomp.py [--uid N] [--cap-add CAP_X]... PROFILE.json COMMAND [ARG]...
    docker_seccomp.py --write FILE PROFILE.json

The second writes the filter, for under_filter.c where there is no Python. PROFILE.json is moby's default.json.  The filter is built with libseccomp, as
runc builds it, for x86_64 with the x86 and x32 sub-architectures.  Started as
root, the command keeps root's uid with Docker's default capabilities, or, with
--uid, runs as that uid and gid without any.  Started as an ordinary user, it
keeps that user.  Namespaces, masked /proc files, the device cgroup and AppArmor
are not imitated, and no_new_privs is set, which Docker leaves unset.
"""
import argparse
import ctypes
import errno
import json
import os
import platform
import struct
import sys

DEFAULT_CAPS = {  # name: number in linux/capability.h
    "CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4,
    "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10, "CAP_NET_RAW": 13, "CAP_SYS_CHROOT": 18,
    "CAP_MKNOD": 27, "CAP_AUDIT_WRITE": 29, "CAP_SETFCAP": 31,
}
ADDABLE_CAPS = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_SYS_NICE": 23}
# Architecture names: ours in includes/excludes, and libseccomp's tokens (AUDIT_ARCH_*).
ARCH = "amd64"
ARCH_X86_64, ARCH_X86, ARCH_X32 = 0xC000003E, 0x40000003, 0x4000003E
X32_SYSCALL_BIT = 0x40000000
ACT_ALLOW, ACT_ERRNO = 0x7FFF0000, 0x00050000
COMPARE = {"SCMP_CMP_" + op: i for i, op in enumerate(("NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"), 1)}
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 24, 38, 2

libc = ctypes.CDLL(None, use_errno=True)
libseccomp = ctypes.CDLL("libseccomp.so.2")
libseccomp.seccomp_init.restype = ctypes.c_void_p


class ArgCmp(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


class SockFprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def check(result, what):
    """Raises OSError for libseccomp's -errno and for libc's -1."""
    if result < 0:
        number = ctypes.get_errno() if result == -1 else -result
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def applies(rule, caps):
    """Whether Docker puts this rule of the profile into the filter."""
    def kernel_is(minimum):
        release = platform.release().replace("-", ".").split(".")
        return [int(n) for n in release[:2]] >= [int(n) for n in minimum.split(".")]

    inc, exc = rule.get("includes", {}), rule.get("excludes", {})
    excluded = (ARCH in exc.get("arches", ()) or caps & set(exc.get("caps", ()))
                or "minKernel" in exc and kernel_is(exc["minKernel"]))
    included = (ARCH in inc.get("arches", [ARCH]) and caps >= set(inc.get("caps", ()))
                and kernel_is(inc.get("minKernel", "0.0")))
    return included and not excluded


def action(name, errno_ret):
    return {"SCMP_ACT_ALLOW": ACT_ALLOW, "SCMP_ACT_ERRNO": ACT_ERRNO | errno_ret}[name]


def build_filter(profile, caps):
    """The profile as BPF: an array of struct sock_filter."""
    default_errno = profile.get("defaultErrnoRet", 1)
    default = action(profile["defaultAction"], default_errno)
    ctx = ctypes.c_void_p(libseccomp.seccomp_init(ctypes.c_uint32(default)))
    for arch in (ARCH_X86, ARCH_X32):
        check(libseccomp.seccomp_arch_add(ctx, ctypes.c_uint32(arch)), "seccomp_arch_add")
    last = {ARCH_X86_64: 0, ARCH_X86: 0}  # highest system call the profile names
    for rule in (r for r in profile["syscalls"] if applies(r, caps)):
        act = action(rule["action"], rule.get("errnoRet", default_errno))
        args = [ArgCmp(a["index"], COMPARE[a["op"]], a["value"], a.get("valueTwo", 0))
                for a in rule.get("args") or ()]
        for name in rule["names"]:
            for arch in last:
                nr = libseccomp.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(arch), name.encode())
                last[arch] = max(last[arch], nr)
            nr = libseccomp.seccomp_syscall_resolve_name(name.encode())
            if nr == -1 or act == default:  # unknown to this libseccomp; or nothing to say
                continue
            result = libseccomp.seccomp_rule_add_array(
                ctx, ctypes.c_uint32(act), nr, len(args), (ArgCmp * len(args))(*args))
            if result != -errno.EEXIST:  # a rule given twice is no harm
                check(result, f"rule for {name}")
    with os.fdopen(os.memfd_create("filter"), "w+b") as out:
        check(libseccomp.seccomp_export_bpf(ctx, out.fileno()), "seccomp_export_bpf")
        out.seek(0)
        return enosys_stub(last) + out.read()


def enosys_stub(last):
    """As runc does: system calls newer than any that the profile names don't exist (ENOSYS)."""
    def insn(code, k, yes=0, no=0):
        return struct.pack("=HBBI", code, yes, no, k)
    load, jeq, jgt, jge, ret = 0x20, 0x15, 0x25, 0x35, 0x06
    return b"".join([
        insn(load, 4),                         # 0: the architecture
        insn(jeq, ARCH_X86, yes=3),            # 1: to 5
        insn(load, 0),                         # 2: the system call's number
        insn(jge, X32_SYSCALL_BIT, yes=4),     # 3: x32: to 8, the filter proper
        insn(jgt, last[ARCH_X86_64], 2, 3),    # 4: to 7 or 8
        insn(load, 0),                         # 5
        insn(jgt, last[ARCH_X86], no=1),       # 6: to 7 or 8
        insn(ret, ACT_ERRNO | errno.ENOSYS)])  # 7


def drop_privileges(uid, caps):
    last_cap = int(open("/proc/sys/kernel/cap_last_cap").read())
    for cap in set(range(last_cap + 1)) - set(caps.values()):
        check(libc.prctl(PR_CAPBSET_DROP, cap, 0, 0, 0), "PR_CAPBSET_DROP")
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)  # clears the permitted and effective sets
        return
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    bits = sum(1 << cap for cap in caps.values())
    data = (ctypes.c_uint32 * 6)(bits, bits, 0, 0, 0, 0)  # effective, permitted, inheritable
    check(libc.capset(header, data), "capset")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uid", type=int, default=0, help="run as this uid and gid (needs root)")
    parser.add_argument("--cap-add", action="append", default=[], choices=sorted(ADDABLE_CAPS))
    parser.add_argument("--write", metavar="FILE", help="write the filter, and run nothing")
    parser.add_argument("profile", metavar="PROFILE.json")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.write:
        with open(options.profile) as profile, open(options.write, "wb") as file:
            file.write(build_filter(json.load(profile), set(DEFAULT_CAPS)))
        return
    if not options.command or platform.machine() != "x86_64" or (options.uid and os.geteuid() != 0):
        parser.error("needs a command, an x86_64 kernel and, for --uid, root")
    caps = DEFAULT_CAPS | {name: ADDABLE_CAPS[name] for name in options.cap_add}
    with open(options.profile) as file:
        bpf = build_filter(json.load(file), set(caps))
    program = ctypes.create_string_buffer(bpf, len(bpf))
    fprog = SockFprog(len(bpf) // 8, ctypes.addressof(program))
    if os.geteuid() == 0:
        drop_privileges(options.uid, caps)
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(fprog), 0, 0), "PR_SET_SECCOMP")
    try:
        os.execvp(options.command[0], options.command)
    except OSError as error:
        sys.exit(f"{parser.prog}: {options.command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
