//! Thread exit.
//!
//! Owns: the memory of a thread that the kernel touches when it has ended. The kernel writes to the
//! futexes of robust mutexes that the thread still holds, and to the thread number that
//! `pthread_join` waits on. At that time it serves no userfaultfd faults, so these pages must be in
//! memory. And, where calls are caught, the stack on which a thread begins: until its own are
//! caught, nobody brings in what it touches.
//! Invariants: the thread's last destructors pin them, and the next thread that starts or ends
//! unpins them. No Rust frame is below a thread's own first function, so cancellation unwinds as
//! without us.
//! Not here: a *process* that is killed. What other processes may wait for is in shared memory,
//! which is not managed.
//! Rejected: pinning a mutex when it is made. This missed those made by a static initialiser, and
//! most are never held by a thread that ends.

use crate::calls;
use crate::cpus;
use crate::heap::PagerScope;
use crate::pager::{Process, any_process, is_managed, process};
use crate::real::{Next, system_call};
use libc::{c_int, c_void, pid_t, pthread_attr_t, pthread_key_t, pthread_t};
use overspill_base::PAGE_SIZE;
use overspill_space::ManagedMemory;
use rustix::thread::CpuSet;
use std::arch::naked_asm;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

pub(crate) type StartRoutine = extern "C" fn(*mut c_void) -> *mut c_void;
pub(crate) type PthreadCreate =
    unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, StartRoutine, *mut c_void) -> c_int;

/// Bytes from a thread's own address in which libc keeps what the kernel touches, with room for
/// other versions: the thread's number and the head of its list of mutexes.
const THREAD_BYTES: usize = 2304;
/// A pthread_mutex_t.
const MUTEX_BYTES: usize = 48;
/// Most entries of a list that the kernel visits.
const LIST_MAX: usize = 2048;

/// Our key for thread-specific data; none before [`make_key`].
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Pages pinned for a thread that ends.
struct Pinned {
    thread: pid_t,
    pages: Vec<usize>,
}

/// Locked within memory calls only, so that it is unlocked at a fork.
static PINNED: Mutex<Vec<Pinned>> = Mutex::new(Vec::new());
/// Length of [`PINNED`].
static PINNED_COUNT: AtomicUsize = AtomicUsize::new(0);

fn pinned() -> MutexGuard<'static, Vec<Pinned>> {
    PINNED.lock().unwrap_or_else(|e| e.into_inner())
}

/// Makes the key once the pager runs, on the program's first thread.
pub(crate) fn make_key() {
    let mut key: pthread_key_t = 0;
    // SAFETY: the destructor stays valid: the object is never unloaded.
    if process().is_some() && unsafe { libc::pthread_key_create(&raw mut key, Some(ends)) } == 0 {
        KEY.store(key, Relaxed);
        set_round(1);
    }
}

/// Has libc call [`ends`] for this thread, for the `round`th time.
fn set_round(round: usize) {
    let key = KEY.load(Relaxed);
    if key != u32::MAX {
        // SAFETY: our own key; the values of early keys are stored in the thread block.
        unsafe { libc::pthread_setspecific(key, round as *const c_void) };
    }
}

/// Calls `next`, libc's pthread_create, for a thread of the program.
///
/// # Safety
/// As libc's.
pub(crate) unsafe fn create(
    next: PthreadCreate,
    thread: *mut pthread_t,
    attr: *const pthread_attr_t,
    start: StartRoutine,
    arg: *mut c_void,
) -> c_int {
    if KEY.load(Relaxed) == u32::MAX {
        // SAFETY: passed on.
        return unsafe { next(thread, attr, start, arg) };
    }
    if let Some(process) = any_process().filter(|_| PINNED_COUNT.load(Relaxed) > 0) {
        process.call(unpin_dead);
    }
    // SAFETY: libc's contract.
    let pages = unsafe { pin_beginning(attr) };
    // SAFETY: libc's contract.
    let cpus = unsafe { cpus::to_inherit(attr) };
    let new = Box::into_raw(Box::new(NewThread { body: Body { start, arg }, pages, cpus }));
    // SAFETY: passed on; `prepare` takes ownership of the box.
    let result = unsafe { next(thread, attr, run, new.cast()) };
    if result != 0 {
        // SAFETY: no thread has taken it.
        unpin(unsafe { Box::from_raw(new) }.pages);
    }
    result
}

/// A thread's function and argument; in two registers when returned.
#[repr(C)]
struct Body {
    start: StartRoutine,
    arg: *mut c_void,
}

/// What a new thread is given.
struct NewThread {
    body: Body,
    /// Pinned until its calls are caught.
    pages: Vec<usize>,
    /// Where it may run, if it is not said otherwise.
    cpus: Option<CpuSet>,
}

/// Keeps what a new thread touches of its stack, if the program has provided one, until its calls
/// are caught: its block, and the frames of what runs before the program's own function.
///
/// # Safety
/// `attr` is null or initialised.
unsafe fn pin_beginning(attr: *const pthread_attr_t) -> Vec<usize> {
    /// More than those frames.
    const FRAMES_BYTES: usize = 32 << 10;
    type Minimum = unsafe extern "C" fn(*const pthread_attr_t) -> usize;
    // Java asks it as well.
    static MINIMUM: Next = Next::new(c"__pthread_get_minstack");
    let Some(process) = any_process().filter(|_| calls::are_caught() && !attr.is_null()) else {
        return Vec::new();
    };
    let (mut start, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: contract; two words to write to.
    if unsafe { libc::pthread_attr_getstack(attr, &raw mut start, &raw mut bytes) } != 0 {
        return Vec::new();
    }
    // SAFETY: libc's function of this name and type, which has the size of a thread's block in it.
    let block = unsafe { std::mem::transmute::<*mut c_void, Minimum>(MINIMUM.address())(attr) };
    let beginning = bytes.min(block + FRAMES_BYTES);
    // Without a stack of the program's these are no addresses.
    let first = start.addr().wrapping_add(bytes - beginning);
    if beginning == 0 || !is_managed(first) {
        return Vec::new();
    }
    let pages: Vec<_> = managed_pages(first, beginning).collect();
    process.call(move |memory| {
        pages.into_iter().filter(|&page| memory.pin(page, 1, None).is_ok()).collect()
    })
}

fn unpin(pages: Vec<usize>) {
    if let Some(process) = any_process().filter(|_| !pages.is_empty()) {
        process.call(move |memory| pages.iter().for_each(|&page| memory.unpin(page, 1)));
    }
}

extern "C" fn prepare(new: *mut NewThread) -> Body {
    set_round(1);
    let _scope = PagerScope::enter();
    if let Some(process) = any_process().filter(|_| calls::are_caught()) {
        pin_block(process);
    }
    if let Some(Err(reason)) = any_process().map(calls::begin_thread) {
        crate::pager::say(&reason);
        std::process::abort();
    }
    // SAFETY: the box that `create` made for this thread.
    let NewThread { body, pages, cpus } = *unsafe { Box::from_raw(new) };
    unpin(pages);
    cpus::inherit(cpus);
    body
}

/// Prepares the thread and jumps to its own function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn run(body: *mut c_void) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "sub rsp, 8",
        "call {prepare}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        prepare = sym prepare,
    )
}

/// As above.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn run(body: *mut c_void) -> *mut c_void {
    naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "bl {prepare}",
        "ldp x29, x30, [sp], #16",
        "mov x16, x0",
        "mov x0, x1",
        "br x16",
        prepare = sym prepare,
    )
}

/// Called in every round of destructors; the last comes after all that could lock a mutex.
unsafe extern "C" fn ends(round: *mut c_void) {
    /// PTHREAD_DESTRUCTOR_ITERATIONS.
    const ROUNDS: usize = 4;
    if round.addr() < ROUNDS {
        set_round(round.addr() + 1);
    }
    let Some(process) = process() else { return };
    let pages = {
        let _scope = PagerScope::enter();
        pages_of_this_thread()
    };
    if !pages.is_empty() || PINNED_COUNT.load(Relaxed) > 0 {
        pin(process, pages);
    }
}

/// Keeps the block of a thread in memory whose stack the program has provided: where the kernel
/// cannot wait for a page it writes there whenever the thread is moved to another CPU (rseq), and
/// our handlers of signals read there.
fn pin_block(process: &'static Process) {
    /// Thread-local storage below the thread's address.
    const BELOW_BYTES: usize = 2 * PAGE_SIZE;
    // SAFETY: this thread's own address.
    let own = unsafe { libc::pthread_self() } as usize;
    if is_managed(own) {
        pin(process, managed_pages(own - BELOW_BYTES, BELOW_BYTES + THREAD_BYTES).collect());
    }
}

/// The addresses of the managed pages of a range.
fn managed_pages(start: usize, len: usize) -> impl Iterator<Item = usize> {
    let within = start / PAGE_SIZE..=(start + len - 1) / PAGE_SIZE;
    within.map(|page| page * PAGE_SIZE).filter(|&page| is_managed(page))
}

fn pin(process: &'static Process, pages: Vec<usize>) {
    let thread = system_call!(libc::SYS_gettid) as pid_t;
    process.call(move |memory| {
        unpin_dead(memory);
        let mut all = pinned();
        let before = all.iter().position(|pinned| pinned.thread == thread);
        let before = before.map(|n| all.swap_remove(n).pages).unwrap_or_default();
        drop(all);
        // Pages that cannot be pinned are treated as without us.
        let new = pages.into_iter().filter(|page| !before.contains(page));
        let new: Vec<_> = new.filter(|&page| memory.pin(page, 1, None).is_ok()).collect();
        pinned().push(Pinned { thread, pages: [before, new].concat() });
        PINNED_COUNT.store(pinned().len(), Relaxed);
    });
}

fn unpin_dead(memory: &ManagedMemory) {
    let own = crate::apart::program().as_raw_pid();
    let dead = |pinned: &mut Pinned| system_call!(libc::SYS_tgkill, own, pinned.thread, 0) != 0;
    let dead: Vec<Pinned> = pinned().extract_if(.., dead).collect();
    dead.iter().flat_map(|dead| &dead.pages).for_each(|&page| memory.unpin(page, 1));
    PINNED_COUNT.store(pinned().len(), Relaxed);
}

/// Returns the managed pages that the kernel touches when this thread has ended.
fn pages_of_this_thread() -> Vec<usize> {
    let mut pages = Vec::new();
    let mut add = |start: usize, len: usize| pages.extend(managed_pages(start, len));
    // SAFETY: this thread's own address.
    let own = unsafe { libc::pthread_self() } as usize;
    if is_managed(own) {
        add(own, THREAD_BYTES);
    }
    held_mutexes(|futex, entry| add(futex.min(entry), MUTEX_BYTES));
    pages.sort_unstable();
    pages.dedup();
    pages
}

/// The head of a thread's list of robust mutexes, which libc registers with the kernel.
#[repr(C)]
struct RobustList {
    next: usize,
    futex_offset: isize,
    pending: usize,
}

/// Calls `found` with the addresses of the futex and of the list entry of each robust mutex that
/// this thread holds.
fn held_mutexes(mut found: impl FnMut(usize, usize)) {
    let (mut head, mut len) = (std::ptr::null::<RobustList>(), 0usize);
    let (head_out, len_out) = (&raw mut head, &raw mut len);
    if system_call!(libc::SYS_get_robust_list, 0, head_out, len_out) != 0 || head.is_null() {
        return;
    }
    // SAFETY: this thread's list, which no other thread changes; the lowest bit marks a kind.
    unsafe {
        let offset = (*head).futex_offset;
        let mut entry = (*head).next & !1;
        for _ in 0..LIST_MAX {
            if entry == head.addr() || entry == 0 {
                return;
            }
            found(entry.wrapping_add_signed(offset), entry);
            entry = *(entry as *const usize) & !1;
        }
    }
}
