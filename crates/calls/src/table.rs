//! The table of system calls.

use crate::types::{Arg, Call};
use libc::{
    c_int, c_long, epoll_event, itimerspec, itimerval, mq_attr, msqid_ds, pollfd, rlimit64, rusage,
    sched_attr, sched_param, sembuf, shmid_ds, sigevent, siginfo_t, stack_t, stat, statfs, statx,
    sysinfo, timespec, timeval, timex, tms, utsname,
};
use linux_raw_sys::general as nr;

/// Returns the table's row for a system call.
pub fn call(number: u32) -> Option<&'static Call> {
    let row = *ROWS.get(number as usize)?;
    CALLS.get(row as usize)
}

/// Numbers of system calls are below this.
const NUMBERS: usize = 512;
/// By number: the row in [`CALLS`], or one that is not there.
static ROWS: [u16; NUMBERS] = {
    let mut rows = [u16::MAX; NUMBERS];
    let mut row = 0;
    while row < CALLS.len() {
        rows[CALLS[row].number as usize] = row as u16;
        row += 1;
    }
    rows
};

/// How large a structure is.
const fn bytes_of<T>() -> u16 {
    assert!(size_of::<T>() <= u16::MAX as usize);
    size_of::<T>() as u16
}

const INT: u16 = bytes_of::<c_int>();
const LONG: u16 = bytes_of::<c_long>();
const TIME: Arg = Bytes(bytes_of::<timespec>());
const TWO_TIMES: Arg = Bytes(2 * bytes_of::<timespec>());
const TIMEVAL: Arg = Bytes(bytes_of::<timeval>());
const STAT: Arg = Bytes(bytes_of::<stat>());
const STATFS: Arg = Bytes(bytes_of::<statfs>());
const SIGNALS: Arg = Bytes(8);
const INFO: Arg = Bytes(bytes_of::<siginfo_t>());
const INTS: Arg = Bytes(2 * INT);
const PATH_MAX: u16 = 4096;

use Arg::*;

macro_rules! calls {
    ($($(#[$only:meta])* $name:ident $number:ident: $($arg:expr),*;)*) => {
        &[$($(#[$only])* Call { number: nr::$number, name: stringify!($name), args: &[$($arg),*] },)*]
    };
}

/// All system calls that exist, by number. Those that work on memory later, when the call is over
/// (io_uring, aio), are missing: they are refused.
pub const CALLS: &[Call] = calls! {
    read __NR_read: Value, Sized(2);
    write __NR_write: Value, Sized(2);
    #[cfg(target_arch = "x86_64")]
    open __NR_open: Str;
    close __NR_close: ;
    #[cfg(target_arch = "x86_64")]
    stat __NR_stat: Str, STAT;
    fstat __NR_fstat: Value, STAT;
    #[cfg(target_arch = "x86_64")]
    lstat __NR_lstat: Str, STAT;
    #[cfg(target_arch = "x86_64")]
    poll __NR_poll: Items(1, bytes_of::<pollfd>());
    lseek __NR_lseek: ;
    mmap __NR_mmap: ;
    mprotect __NR_mprotect: ;
    munmap __NR_munmap: ;
    brk __NR_brk: ;
    rt_sigaction __NR_rt_sigaction: Value, Bytes(32), Bytes(32);
    rt_sigprocmask __NR_rt_sigprocmask: Value, SIGNALS, SIGNALS;
    rt_sigreturn __NR_rt_sigreturn: ;
    ioctl __NR_ioctl: Value, Value, Ioctl;
    pread64 __NR_pread64: Value, Sized(2);
    pwrite64 __NR_pwrite64: Value, Sized(2);
    readv __NR_readv: Value, Vectors(2);
    writev __NR_writev: Value, Vectors(2);
    #[cfg(target_arch = "x86_64")]
    access __NR_access: Str;
    #[cfg(target_arch = "x86_64")]
    pipe __NR_pipe: INTS;
    #[cfg(target_arch = "x86_64")]
    select __NR_select: Value, Bits(0), Bits(0), Bits(0), TIMEVAL;
    sched_yield __NR_sched_yield: ;
    mremap __NR_mremap: ;
    msync __NR_msync: ;
    mincore __NR_mincore: Value, Value, PerPage(1);
    madvise __NR_madvise: ;
    shmget __NR_shmget: ;
    shmat __NR_shmat: ;
    shmctl __NR_shmctl: Value, Value, Bytes(bytes_of::<shmid_ds>());
    dup __NR_dup: ;
    #[cfg(target_arch = "x86_64")]
    dup2 __NR_dup2: ;
    #[cfg(target_arch = "x86_64")]
    pause __NR_pause: ;
    nanosleep __NR_nanosleep: TIME, TIME;
    getitimer __NR_getitimer: Value, Bytes(bytes_of::<itimerval>());
    #[cfg(target_arch = "x86_64")]
    alarm __NR_alarm: ;
    setitimer __NR_setitimer: Value, Bytes(bytes_of::<itimerval>()), Bytes(bytes_of::<itimerval>());
    getpid __NR_getpid: ;
    sendfile __NR_sendfile: Value, Value, Bytes(LONG);
    socket __NR_socket: ;
    connect __NR_connect: Value, Sized(2);
    accept __NR_accept: Value, SizedAt(2), Bytes(INT);
    sendto __NR_sendto: Value, Sized(2), Value, Value, Sized(5);
    recvfrom __NR_recvfrom: Value, Sized(2), Value, Value, SizedAt(5), Bytes(INT);
    sendmsg __NR_sendmsg: Value, Message;
    recvmsg __NR_recvmsg: Value, Message;
    shutdown __NR_shutdown: ;
    bind __NR_bind: Value, Sized(2);
    listen __NR_listen: ;
    getsockname __NR_getsockname: Value, SizedAt(2), Bytes(INT);
    getpeername __NR_getpeername: Value, SizedAt(2), Bytes(INT);
    socketpair __NR_socketpair: Value, Value, Value, INTS;
    setsockopt __NR_setsockopt: Value, Value, Value, Pointing(4);
    getsockopt __NR_getsockopt: Value, Value, Value, SizedAt(4), Bytes(INT);
    clone __NR_clone: Value, Value, Bytes(INT), Bytes(INT), Bytes(INT);
    #[cfg(target_arch = "x86_64")]
    fork __NR_fork: ;
    #[cfg(target_arch = "x86_64")]
    vfork __NR_vfork: ;
    execve __NR_execve: Str, Strs, Strs;
    exit __NR_exit: ;
    wait4 __NR_wait4: Value, Bytes(INT), Value, Bytes(bytes_of::<rusage>());
    kill __NR_kill: ;
    uname __NR_uname: Bytes(bytes_of::<utsname>());
    semget __NR_semget: ;
    semop __NR_semop: Value, Items(2, bytes_of::<sembuf>());
    semctl __NR_semctl: Value, Value, Value, Command;
    shmdt __NR_shmdt: ;
    msgget __NR_msgget: ;
    msgsnd __NR_msgsnd: Value, Queued(2);
    msgrcv __NR_msgrcv: Value, Queued(2);
    msgctl __NR_msgctl: Value, Value, Bytes(bytes_of::<msqid_ds>());
    fcntl __NR_fcntl: Value, Value, Command;
    flock __NR_flock: ;
    fsync __NR_fsync: ;
    fdatasync __NR_fdatasync: ;
    truncate __NR_truncate: Str;
    ftruncate __NR_ftruncate: ;
    #[cfg(target_arch = "x86_64")]
    getdents __NR_getdents: Value, Sized(2);
    getcwd __NR_getcwd: Sized(1);
    chdir __NR_chdir: Str;
    fchdir __NR_fchdir: ;
    #[cfg(target_arch = "x86_64")]
    rename __NR_rename: Str, Str;
    #[cfg(target_arch = "x86_64")]
    mkdir __NR_mkdir: Str;
    #[cfg(target_arch = "x86_64")]
    rmdir __NR_rmdir: Str;
    #[cfg(target_arch = "x86_64")]
    creat __NR_creat: Str;
    #[cfg(target_arch = "x86_64")]
    link __NR_link: Str, Str;
    #[cfg(target_arch = "x86_64")]
    unlink __NR_unlink: Str;
    #[cfg(target_arch = "x86_64")]
    symlink __NR_symlink: Str, Str;
    #[cfg(target_arch = "x86_64")]
    readlink __NR_readlink: Str, Sized(2);
    #[cfg(target_arch = "x86_64")]
    chmod __NR_chmod: Str;
    fchmod __NR_fchmod: ;
    #[cfg(target_arch = "x86_64")]
    chown __NR_chown: Str;
    fchown __NR_fchown: ;
    #[cfg(target_arch = "x86_64")]
    lchown __NR_lchown: Str;
    umask __NR_umask: ;
    gettimeofday __NR_gettimeofday: TIMEVAL, Bytes(2 * INT);
    getrlimit __NR_getrlimit: Value, Bytes(bytes_of::<rlimit64>());
    getrusage __NR_getrusage: Value, Bytes(bytes_of::<rusage>());
    sysinfo __NR_sysinfo: Bytes(bytes_of::<sysinfo>());
    times __NR_times: Bytes(bytes_of::<tms>());
    ptrace __NR_ptrace: Value, Value, Command, Command;
    getuid __NR_getuid: ;
    syslog __NR_syslog: Value, Sized(2);
    getgid __NR_getgid: ;
    setuid __NR_setuid: ;
    setgid __NR_setgid: ;
    geteuid __NR_geteuid: ;
    getegid __NR_getegid: ;
    setpgid __NR_setpgid: ;
    getppid __NR_getppid: ;
    #[cfg(target_arch = "x86_64")]
    getpgrp __NR_getpgrp: ;
    setsid __NR_setsid: ;
    setreuid __NR_setreuid: ;
    setregid __NR_setregid: ;
    getgroups __NR_getgroups: Value, Items(0, INT);
    setgroups __NR_setgroups: Value, Items(0, INT);
    setresuid __NR_setresuid: ;
    getresuid __NR_getresuid: Bytes(INT), Bytes(INT), Bytes(INT);
    setresgid __NR_setresgid: ;
    getresgid __NR_getresgid: Bytes(INT), Bytes(INT), Bytes(INT);
    getpgid __NR_getpgid: ;
    setfsuid __NR_setfsuid: ;
    setfsgid __NR_setfsgid: ;
    getsid __NR_getsid: ;
    capget __NR_capget: Bytes(8), Bytes(24);
    capset __NR_capset: Bytes(8), Bytes(24);
    rt_sigpending __NR_rt_sigpending: SIGNALS;
    rt_sigtimedwait __NR_rt_sigtimedwait: SIGNALS, INFO, TIME;
    rt_sigqueueinfo __NR_rt_sigqueueinfo: Value, Value, INFO;
    rt_sigsuspend __NR_rt_sigsuspend: SIGNALS;
    sigaltstack __NR_sigaltstack: Bytes(bytes_of::<stack_t>()), Bytes(bytes_of::<stack_t>());
    #[cfg(target_arch = "x86_64")]
    utime __NR_utime: Str, Bytes(bytes_of::<libc::utimbuf>());
    #[cfg(target_arch = "x86_64")]
    mknod __NR_mknod: Str;
    personality __NR_personality: ;
    #[cfg(target_arch = "x86_64")]
    ustat __NR_ustat: Value, Bytes(32);
    statfs __NR_statfs: Str, STATFS;
    fstatfs __NR_fstatfs: Value, STATFS;
    #[cfg(target_arch = "x86_64")]
    sysfs __NR_sysfs: Value, Command, Command;
    getpriority __NR_getpriority: ;
    setpriority __NR_setpriority: ;
    sched_setparam __NR_sched_setparam: Value, Bytes(bytes_of::<sched_param>());
    sched_getparam __NR_sched_getparam: Value, Bytes(bytes_of::<sched_param>());
    sched_setscheduler __NR_sched_setscheduler: Value, Value, Bytes(bytes_of::<sched_param>());
    sched_getscheduler __NR_sched_getscheduler: ;
    sched_get_priority_max __NR_sched_get_priority_max: ;
    sched_get_priority_min __NR_sched_get_priority_min: ;
    sched_rr_get_interval __NR_sched_rr_get_interval: Value, TIME;
    mlock __NR_mlock: ;
    munlock __NR_munlock: ;
    mlockall __NR_mlockall: ;
    munlockall __NR_munlockall: ;
    vhangup __NR_vhangup: ;
    #[cfg(target_arch = "x86_64")]
    modify_ldt __NR_modify_ldt: Value, Sized(2);
    pivot_root __NR_pivot_root: Str, Str;
    prctl __NR_prctl: Value, Command, Command, Command, Command;
    #[cfg(target_arch = "x86_64")]
    arch_prctl __NR_arch_prctl: Value, Command;
    adjtimex __NR_adjtimex: Bytes(bytes_of::<timex>());
    setrlimit __NR_setrlimit: Value, Bytes(bytes_of::<rlimit64>());
    chroot __NR_chroot: Str;
    sync __NR_sync: ;
    acct __NR_acct: Str;
    settimeofday __NR_settimeofday: TIMEVAL, Bytes(2 * INT);
    mount __NR_mount: Str, Str, Str, Value, Bytes(PATH_MAX);
    umount2 __NR_umount2: Str;
    swapon __NR_swapon: Str;
    swapoff __NR_swapoff: Str;
    reboot __NR_reboot: Value, Value, Value, Str;
    sethostname __NR_sethostname: Sized(1);
    setdomainname __NR_setdomainname: Sized(1);
    #[cfg(target_arch = "x86_64")]
    iopl __NR_iopl: ;
    #[cfg(target_arch = "x86_64")]
    ioperm __NR_ioperm: ;
    init_module __NR_init_module: Sized(1), Value, Str;
    delete_module __NR_delete_module: Str;
    quotactl __NR_quotactl: Value, Str, Value, Bytes(256);
    gettid __NR_gettid: ;
    readahead __NR_readahead: ;
    setxattr __NR_setxattr: Str, Str, Sized(3);
    lsetxattr __NR_lsetxattr: Str, Str, Sized(3);
    fsetxattr __NR_fsetxattr: Value, Str, Sized(3);
    getxattr __NR_getxattr: Str, Str, Sized(3);
    lgetxattr __NR_lgetxattr: Str, Str, Sized(3);
    fgetxattr __NR_fgetxattr: Value, Str, Sized(3);
    listxattr __NR_listxattr: Str, Sized(2);
    llistxattr __NR_llistxattr: Str, Sized(2);
    flistxattr __NR_flistxattr: Value, Sized(2);
    removexattr __NR_removexattr: Str, Str;
    lremovexattr __NR_lremovexattr: Str, Str;
    fremovexattr __NR_fremovexattr: Value, Str;
    tkill __NR_tkill: ;
    #[cfg(target_arch = "x86_64")]
    time __NR_time: Bytes(LONG);
    futex __NR_futex: Futex, Value, Value, TIME, Bytes(INT);
    sched_setaffinity __NR_sched_setaffinity: Value, Value, Sized(1);
    sched_getaffinity __NR_sched_getaffinity: Value, Value, Sized(1);
    #[cfg(target_arch = "x86_64")]
    set_thread_area __NR_set_thread_area: ;
    #[cfg(target_arch = "x86_64")]
    get_thread_area __NR_get_thread_area: ;
    #[cfg(target_arch = "x86_64")]
    epoll_create __NR_epoll_create: ;
    remap_file_pages __NR_remap_file_pages: ;
    getdents64 __NR_getdents64: Value, Sized(2);
    set_tid_address __NR_set_tid_address: ;
    restart_syscall __NR_restart_syscall: ;
    semtimedop __NR_semtimedop: Value, Items(2, bytes_of::<sembuf>()), Value, TIME;
    fadvise64 __NR_fadvise64: ;
    timer_create __NR_timer_create: Value, Bytes(bytes_of::<sigevent>()), Bytes(INT);
    timer_settime __NR_timer_settime: Value, Value, Bytes(bytes_of::<itimerspec>()), Bytes(bytes_of::<itimerspec>());
    timer_gettime __NR_timer_gettime: Value, Bytes(bytes_of::<itimerspec>());
    timer_getoverrun __NR_timer_getoverrun: ;
    timer_delete __NR_timer_delete: ;
    clock_settime __NR_clock_settime: Value, TIME;
    clock_gettime __NR_clock_gettime: Value, TIME;
    clock_getres __NR_clock_getres: Value, TIME;
    clock_nanosleep __NR_clock_nanosleep: Value, Value, TIME, TIME;
    exit_group __NR_exit_group: ;
    #[cfg(target_arch = "x86_64")]
    epoll_wait __NR_epoll_wait: Value, Items(2, bytes_of::<epoll_event>());
    epoll_ctl __NR_epoll_ctl: Value, Value, Value, Bytes(bytes_of::<epoll_event>());
    tgkill __NR_tgkill: ;
    #[cfg(target_arch = "x86_64")]
    utimes __NR_utimes: Str, Bytes(2 * bytes_of::<timeval>());
    mbind __NR_mbind: Value, Value, Value, Bits(4);
    set_mempolicy __NR_set_mempolicy: Value, Bits(2);
    get_mempolicy __NR_get_mempolicy: Bytes(INT), Bits(2);
    mq_open __NR_mq_open: Str, Value, Value, Bytes(bytes_of::<mq_attr>());
    mq_unlink __NR_mq_unlink: Str;
    mq_timedsend __NR_mq_timedsend: Value, Sized(2), Value, Value, TIME;
    mq_timedreceive __NR_mq_timedreceive: Value, Sized(2), Value, Bytes(INT), TIME;
    mq_notify __NR_mq_notify: Value, Bytes(bytes_of::<sigevent>());
    mq_getsetattr __NR_mq_getsetattr: Value, Bytes(bytes_of::<mq_attr>()), Bytes(bytes_of::<mq_attr>());
    kexec_load __NR_kexec_load: Value, Value, Items(1, 32);
    waitid __NR_waitid: Value, Value, INFO, Value, Bytes(bytes_of::<rusage>());
    add_key __NR_add_key: Str, Str, Sized(3);
    request_key __NR_request_key: Str, Str, Str;
    keyctl __NR_keyctl: Value, Command, Command, Command, Command;
    ioprio_set __NR_ioprio_set: ;
    ioprio_get __NR_ioprio_get: ;
    #[cfg(target_arch = "x86_64")]
    inotify_init __NR_inotify_init: ;
    inotify_add_watch __NR_inotify_add_watch: Value, Str;
    inotify_rm_watch __NR_inotify_rm_watch: ;
    migrate_pages __NR_migrate_pages: Value, Value, Bits(1), Bits(1);
    openat __NR_openat: Value, Str;
    mkdirat __NR_mkdirat: Value, Str;
    mknodat __NR_mknodat: Value, Str;
    fchownat __NR_fchownat: Value, Str;
    #[cfg(target_arch = "x86_64")]
    futimesat __NR_futimesat: Value, Str, Bytes(2 * bytes_of::<timeval>());
    newfstatat __NR_newfstatat: Value, Str, STAT;
    unlinkat __NR_unlinkat: Value, Str;
    renameat __NR_renameat: Value, Str, Value, Str;
    linkat __NR_linkat: Value, Str, Value, Str;
    symlinkat __NR_symlinkat: Str, Value, Str;
    readlinkat __NR_readlinkat: Value, Str, Sized(3);
    fchmodat __NR_fchmodat: Value, Str;
    faccessat __NR_faccessat: Value, Str;
    pselect6 __NR_pselect6: Value, Bits(0), Bits(0), Bits(0), TIME, Mask;
    ppoll __NR_ppoll: Items(1, bytes_of::<pollfd>()), Value, TIME, SIGNALS;
    unshare __NR_unshare: ;
    set_robust_list __NR_set_robust_list: ;
    get_robust_list __NR_get_robust_list: Value, Bytes(LONG), Bytes(LONG);
    splice __NR_splice: Value, Bytes(8), Value, Bytes(8);
    tee __NR_tee: ;
    sync_file_range __NR_sync_file_range: ;
    vmsplice __NR_vmsplice: Value, Vectors(2);
    move_pages __NR_move_pages: Value, Value, Pointers(1), Items(1, INT), Items(1, INT);
    utimensat __NR_utimensat: Value, Str, TWO_TIMES;
    epoll_pwait __NR_epoll_pwait: Value, Items(2, bytes_of::<epoll_event>()), Value, Value, SIGNALS;
    #[cfg(target_arch = "x86_64")]
    signalfd __NR_signalfd: Value, SIGNALS;
    timerfd_create __NR_timerfd_create: ;
    #[cfg(target_arch = "x86_64")]
    eventfd __NR_eventfd: ;
    fallocate __NR_fallocate: ;
    timerfd_settime __NR_timerfd_settime: Value, Value, Bytes(bytes_of::<itimerspec>()), Bytes(bytes_of::<itimerspec>());
    timerfd_gettime __NR_timerfd_gettime: Value, Bytes(bytes_of::<itimerspec>());
    accept4 __NR_accept4: Value, SizedAt(2), Bytes(INT);
    signalfd4 __NR_signalfd4: Value, SIGNALS;
    eventfd2 __NR_eventfd2: ;
    epoll_create1 __NR_epoll_create1: ;
    dup3 __NR_dup3: ;
    pipe2 __NR_pipe2: INTS;
    inotify_init1 __NR_inotify_init1: ;
    preadv __NR_preadv: Value, Vectors(2);
    pwritev __NR_pwritev: Value, Vectors(2);
    rt_tgsigqueueinfo __NR_rt_tgsigqueueinfo: Value, Value, Value, INFO;
    perf_event_open __NR_perf_event_open: Bytes(256);
    recvmmsg __NR_recvmmsg: Value, Messages(2), Value, Value, TIME;
    fanotify_init __NR_fanotify_init: ;
    fanotify_mark __NR_fanotify_mark: Value, Value, Value, Value, Str;
    prlimit64 __NR_prlimit64: Value, Value, Bytes(bytes_of::<rlimit64>()), Bytes(bytes_of::<rlimit64>());
    name_to_handle_at __NR_name_to_handle_at: Value, Str, Bytes(8 + 128), Bytes(8);
    open_by_handle_at __NR_open_by_handle_at: Value, Bytes(8 + 128);
    clock_adjtime __NR_clock_adjtime: Value, Bytes(bytes_of::<timex>());
    syncfs __NR_syncfs: ;
    sendmmsg __NR_sendmmsg: Value, Messages(2);
    setns __NR_setns: ;
    getcpu __NR_getcpu: Bytes(INT), Bytes(INT);
    process_vm_readv __NR_process_vm_readv: Value, Vectors(2), Value, Headers(4);
    process_vm_writev __NR_process_vm_writev: Value, Vectors(2), Value, Headers(4);
    kcmp __NR_kcmp: ;
    finit_module __NR_finit_module: Value, Str;
    sched_setattr __NR_sched_setattr: Value, Bytes(bytes_of::<sched_attr>());
    sched_getattr __NR_sched_getattr: Value, Sized(2);
    renameat2 __NR_renameat2: Value, Str, Value, Str;
    seccomp __NR_seccomp: Value, Value, Command;
    getrandom __NR_getrandom: Sized(1);
    memfd_create __NR_memfd_create: Str;
    kexec_file_load __NR_kexec_file_load: Value, Value, Value, Sized(2);
    bpf __NR_bpf: Value, Pointing(2);
    execveat __NR_execveat: Value, Str, Strs, Strs;
    userfaultfd __NR_userfaultfd: ;
    membarrier __NR_membarrier: ;
    mlock2 __NR_mlock2: ;
    copy_file_range __NR_copy_file_range: Value, Bytes(8), Value, Bytes(8);
    preadv2 __NR_preadv2: Value, Vectors(2);
    pwritev2 __NR_pwritev2: Value, Vectors(2);
    pkey_mprotect __NR_pkey_mprotect: ;
    pkey_alloc __NR_pkey_alloc: ;
    pkey_free __NR_pkey_free: ;
    statx __NR_statx: Value, Str, Value, Value, Bytes(bytes_of::<statx>());
    rseq __NR_rseq: ;
    pidfd_send_signal __NR_pidfd_send_signal: Value, Value, INFO;
    open_tree __NR_open_tree: Value, Str;
    move_mount __NR_move_mount: Value, Str, Value, Str;
    fsopen __NR_fsopen: Str;
    fsconfig __NR_fsconfig: Value, Value, Str, Command;
    fsmount __NR_fsmount: ;
    fspick __NR_fspick: Value, Str;
    pidfd_open __NR_pidfd_open: ;
    clone3 __NR_clone3: Pointing(1);
    close_range __NR_close_range: ;
    openat2 __NR_openat2: Value, Str, Sized(3);
    pidfd_getfd __NR_pidfd_getfd: ;
    faccessat2 __NR_faccessat2: Value, Str;
    process_madvise __NR_process_madvise: Value, Headers(2);
    epoll_pwait2 __NR_epoll_pwait2: Value, Items(2, bytes_of::<epoll_event>()), Value, TIME, SIGNALS;
    mount_setattr __NR_mount_setattr: Value, Str, Value, Sized(4);
    quotactl_fd __NR_quotactl_fd: Value, Value, Value, Bytes(256);
    landlock_create_ruleset __NR_landlock_create_ruleset: Sized(1);
    landlock_add_rule __NR_landlock_add_rule: Value, Value, Bytes(64);
    landlock_restrict_self __NR_landlock_restrict_self: ;
    memfd_secret __NR_memfd_secret: ;
    process_mrelease __NR_process_mrelease: ;
    futex_waitv __NR_futex_waitv: Futexes(1), Value, Value, TIME;
    set_mempolicy_home_node __NR_set_mempolicy_home_node: ;
    cachestat __NR_cachestat: Value, Bytes(16), Bytes(40);
    fchmodat2 __NR_fchmodat2: Value, Str;
    map_shadow_stack __NR_map_shadow_stack: ;
    futex_wake __NR_futex_wake: ;
    futex_wait __NR_futex_wait: Bytes(8), Value, Value, Value, TIME;
    futex_requeue __NR_futex_requeue: Command;
    statmount __NR_statmount: Bytes(64), Sized(2);
    listmount __NR_listmount: Bytes(64), Items(2, 8);
    lsm_get_self_attr __NR_lsm_get_self_attr: Value, Command, Bytes(INT);
    lsm_set_self_attr __NR_lsm_set_self_attr: Value, Sized(2);
    lsm_list_modules __NR_lsm_list_modules: SizedAt(1), Bytes(INT);
    mseal __NR_mseal: ;
    setxattrat __NR_setxattrat: Value, Str, Value, Str, Sized(5);
    getxattrat __NR_getxattrat: Value, Str, Value, Str, Sized(5);
    listxattrat __NR_listxattrat: Value, Str, Value, Sized(4);
    removexattrat __NR_removexattrat: Value, Str, Value, Str;
    open_tree_attr __NR_open_tree_attr: Value, Str, Value, Sized(4);
    file_getattr __NR_file_getattr: Value, Str, Sized(3);
    file_setattr __NR_file_setattr: Value, Str, Sized(3);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_found_by_its_number() {
        assert!(CALLS.iter().all(|row| call(row.number).unwrap().name == row.name));
        assert_eq!(call(nr::__NR_readv).unwrap().args, [Value, Vectors(2)]);
        assert!(call(nr::__NR_io_uring_enter).is_none() && call(4000).is_none());
    }

    #[test]
    fn a_length_is_a_plain_number() {
        for row in CALLS {
            for arg in row.args {
                let length = match *arg {
                    Sized(n)
                    | Items(n, _)
                    | Bits(n)
                    | Vectors(n)
                    | Headers(n)
                    | Messages(n)
                    | Queued(n)
                    | Pointers(n)
                    | Pointing(n)
                    | PerPage(n)
                    | Futexes(n) => n,
                    _ => continue,
                };
                let kind = row.args.get(usize::from(length)).unwrap_or(&Value);
                assert_eq!(*kind, Value, "{}: argument {length}", row.name);
            }
        }
    }
}
