//! What the keeper's process, and its holder, may still ask the kernel for when there are guests.
//!
//! Owns: the list of calls, which seccomp(2) enforces; that no file can be opened, by Landlock;
//! and the capabilities that are left. A ring of io_uring asks for what no filter of calls sees:
//! none can be made any more, and those that there are read and write descriptors that are open,
//! and do nothing else (`overspill_device::file::reserve_rings`).
//! Invariants: it is done while the process has one thread, so that all have it. Nobody is
//! killed: what is not on the list fails with EPERM, for all guests depend on this process.
//! Not here: what was opened before (`places`, and the front for guests).
//! Rejected: an empty root, for which an ordinary user needs a user namespace of its own, and so
//! another identity before its guests; a list of what may not be called, which new kernels
//! outgrow.

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::io::Errno;
use rustix::process::getpid;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use seccompiler::{
    BackendError, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use std::env::consts::ARCH;

/// In what it is not confined, and why.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unconfined {
    #[error("capabilities: {0}")]
    Capabilities(Errno),
    #[error("Landlock: {0}")]
    Files(RulesetError),
    #[error("seccomp: {0}")]
    Filter(#[from] BackendError),
    #[error("seccomp: {0}")]
    Seccomp(#[from] seccompiler::Error),
}

/// To end guests of other users, to be urgent, to lock keys in memory, and to use what a file
/// system keeps for root, as the user may who has them.
const KEPT: CapabilitySet = CapabilitySet::KILL
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::SYS_RESOURCE);

/// Calls of both.
const COMMON: &[i64] = &[
    // Descriptors that are open.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_ppoll,
    libc::SYS_pidfd_send_signal,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads, and their ends.
    libc::SYS_futex,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
];

/// Calls of the keeper.
const KEEPER: &[i64] = &[
    // Files that are open, and new ones in memory.
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_memfd_create,
    // Of rings that were made before.
    libc::SYS_io_uring_enter,
    // Readiness.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    // Sockets that are connected, and pairs.
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    // Keys.
    libc::SYS_getrandom,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    // Threads.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sigaltstack,
    libc::SYS_getcpu,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_membarrier,
    libc::SYS_prlimit64,
    libc::SYS_sysinfo,
];

/// Calls of the holder, which looks for guests among descriptors.
const HOLDER: &[i64] = &[libc::SYS_getdents64, libc::SYS_lseek, libc::SYS_readlinkat];

/// Confines this process, which is the keeper, as far as can be; returns what the kernel refuses.
/// Without Landlock nothing is said: most whom it would be said to could not change that.
pub(crate) fn confine_keeper() -> Vec<Unconfined> {
    confine(KEEPER)
}

/// The same, for the holder.
pub(crate) fn confine_holder() -> Vec<Unconfined> {
    confine(HOLDER)
}

/// What one part cannot be kept from, another may.
fn confine(own: &[i64]) -> Vec<Unconfined> {
    let capabilities = drop_capabilities().map_err(Unconfined::Capabilities);
    let files = close_files().map_err(Unconfined::Files);
    let tried = [capabilities, files, filter(own)];
    tried.into_iter().filter_map(Result::err).collect()
}

fn filter(own: &[i64]) -> Result<(), Unconfined> {
    // The C library makes threads in the older way then, of which the flags can be seen.
    let is_missing = rules(&[libc::SYS_clone3], []);
    let missing = SeccompAction::Errno(libc::ENOSYS as u32);
    seccompiler::apply_filter(&program(is_missing, SeccompAction::Allow, missing)?)?;
    let allowed = rules(&[COMMON, own].concat(), conditional()?);
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    seccompiler::apply_filter(&program(allowed, refused, SeccompAction::Allow)?)?;
    Ok(())
}

fn drop_capabilities() -> Result<(), Errno> {
    let has = capabilities(None)?;
    let kept = CapabilitySets {
        effective: has.effective & KEPT,
        permitted: has.permitted & KEPT,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, kept)
}

/// What is open stays so. Of what the kernel does not know it closes as much as it can.
fn close_files() -> Result<(), RulesetError> {
    let newest = ABI::V6;
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(newest))?
        .handle_access(AccessNet::from_all(newest))?
        // Not signals: guests are ended by them.
        .scope(Scope::AbstractUnixSocket)?;
    ruleset.create()?.no_new_privs(true).restrict_self().map(drop)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls that may be made whatever their arguments are, and others.
fn rules(always: &[i64], others: impl IntoIterator<Item = (i64, SeccompRule)>) -> Rules {
    let always = always.iter().map(|call| (*call, Vec::new()));
    always.chain(others.into_iter().map(|(call, rule)| (call, vec![rule]))).collect()
}

/// Calls that may be made with some arguments only: no memory is ever code, no process is made, and
/// no thread of another one is told anything.
fn conditional() -> Result<Vec<(i64, SeccompRule)>, BackendError> {
    use SeccompCmpOp::{Eq, MaskedEq};
    let executable = libc::PROT_EXEC as u64;
    let (thread, own) = (libc::CLONE_THREAD as u64, getpid().as_raw_nonzero().get() as u64);
    let named = libc::PR_SET_NAME as u64;
    let cases = [
        (libc::SYS_mmap, 2, MaskedEq(executable), 0),
        (libc::SYS_mprotect, 2, MaskedEq(executable), 0),
        (libc::SYS_clone, 0, MaskedEq(thread), thread),
        (libc::SYS_tgkill, 0, Eq, own),
        (libc::SYS_prctl, 0, Eq, named),
    ];
    let rule = |(call, argument, operator, value)| {
        let length = SeccompCmpArgLen::Dword;
        let condition = SeccompCondition::new(argument, length, operator, value)?;
        Ok((call, SeccompRule::new(vec![condition])?))
    };
    cases.into_iter().map(rule).collect()
}

fn program(
    rules: Rules,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<seccompiler::BpfProgram, BackendError> {
    SeccompFilter::new(rules, others, these, ARCH.try_into()?)?.try_into()
}

#[cfg(test)]
mod tests;
