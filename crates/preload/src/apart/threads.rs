//! Threads that libc does not know of.
//!
//! Owns: stacks and thread-local storage of the pager's threads, and the clone calls that start
//! them. The first is a process of its own, which shares the program's memory and nothing else: no
//! descriptor, no directory, no signal handler. Its parent is a thread of the program that has
//! closed all descriptors for itself: copies, closed later, would outlive a program that is killed
//! at this moment. The others are threads of the pager's process. libc's `pthread_create` does not
//! work here: it counts a thread as the program's, which then never ends, and reads the locale's
//! tables on the new thread, which may be swapped out while no pager runs yet.
//! Invariants: a thread has every signal blocked from its first instruction to its last, and is the
//! pager's ([`PagerScope`]). In a forked child [`forget_all`] frees the memory of the parent's
//! threads.
//! Built on: the dynamic linker's thread blocks ([`crate::linker`]), whose head the ABI fixes.

use crate::heap::PagerScope;
use crate::linker::{self, Linker};
use libc::{c_int, c_void};
use overspill_base::PAGE_SIZE;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The pager's code needs little; a panic with a backtrace needs most.
const STACK_BYTES: usize = 512 << 10;

unsafe extern "C" {
    /// libc's clone, by a name that is not interposed.
    #[link_name = "__clone"]
    pub(crate) fn libc_clone(
        body: unsafe extern "C" fn(*mut c_void) -> c_int,
        stack: *mut c_void,
        flags: c_int,
        arg: *mut c_void,
        parent_tid: *mut c_int,
        tls: *mut c_void,
        child_tid: *mut c_int,
    ) -> c_int;

    fn overspill_pager_at_home();
}

/// How a thread is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first thread of a process that shares memory with this one. When it ends, the kernel
    /// kills this process, unless that has executed another program meanwhile.
    Process,
    /// A thread of this process.
    Thread,
}

/// Another thread of this process.
const THREAD: c_int = libc::CLONE_VM
    | libc::CLONE_UNTRACED
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM;

impl Kind {
    fn flags(self) -> c_int {
        libc::CLONE_SETTLS
            | match self {
                Self::Process => libc::CLONE_VM | libc::CLONE_UNTRACED | libc::SIGKILL,
                Self::Thread => THREAD,
            }
    }
}

/// The memory of one thread.
struct Room {
    stack: usize,
    tls: usize,
}

/// The rooms of all threads started in this address space.
static ROOMS: Mutex<Vec<Room>> = Mutex::new(Vec::new());

type Body = Box<dyn FnOnce() + Send>;

/// Starts the first thread of the pager's process, which has no descriptor but `kept`. The caller
/// must have blocked every signal.
pub(super) fn start_apart(kept: Option<c_int>, body: Body) -> io::Result<()> {
    let mut stage = Stage { kept, body: Some(body), outcome: Ok(()) };
    let stack = stack()?;
    let top = (stack + STACK_BYTES) as *mut c_void;
    let nobody = std::ptr::null_mut();
    let (flags, what) = (THREAD | libc::CLONE_VFORK, (&raw mut stage).cast());
    // SAFETY: this thread waits for the new one, which has its stack for itself and this one's
    // thread-local storage.
    let made = unsafe { libc_clone(set_out, top, flags, what, nobody, nobody.cast(), nobody) };
    let error = io::Error::last_os_error();
    // SAFETY: no thread is left on it.
    unsafe { free_stack(stack) };
    if made < 0 { Err(error) } else { stage.outcome }
}

/// What a thread that only starts another needs, and what came of it.
struct Stage {
    kept: Option<c_int>,
    body: Option<Body>,
    outcome: io::Result<()>,
}

/// Starts the pager's process from a thread whose table of descriptors has been emptied.
extern "C" fn set_out(stage: *mut c_void) -> c_int {
    // SAFETY: what `start_apart` passes; it waits meanwhile.
    let stage = unsafe { &mut *stage.cast::<Stage>() };
    let body = stage.body.take();
    stage.outcome = leave_descriptors(stage.kept)
        .and_then(|()| body.map_or(Ok(()), |b| start(Kind::Process, b)));
    0
}

/// Gives this thread a table of its own that holds no descriptor but `kept`.
fn leave_descriptors(kept: Option<c_int>) -> io::Result<()> {
    let close = |first: c_int, last: c_int| {
        let how = libc::CLOSE_RANGE_UNSHARE;
        // SAFETY: the thread's own table; the thread owns none of its descriptors.
        let outcome = unsafe { libc::syscall(libc::SYS_close_range, first, last, how) };
        if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    let kept = kept.unwrap_or(-1);
    close(kept + 1, c_int::MAX)?;
    if kept > 0 { close(0, kept - 1) } else { Ok(()) }
}

/// Starts a thread. The caller must have blocked every signal.
pub(super) fn start(kind: Kind, body: Body) -> io::Result<()> {
    let tls = thread_block()?;
    let stack = match stack() {
        Ok(stack) => stack,
        Err(error) => {
            // SAFETY: just made, and unused.
            unsafe { (linker()?.deallocate)(tls, true) };
            return Err(error);
        }
    };
    let body = Box::into_raw(Box::new(body));
    let top = (stack + STACK_BYTES) as *mut c_void;
    let nobody = std::ptr::null_mut::<c_int>();
    ROOMS.lock().unwrap_or_else(|e| e.into_inner()).push(Room { stack, tls: tls.addr() });
    // SAFETY: only the new thread uses the stack and the thread block, and `run` takes ownership of
    // the body.
    let pid = unsafe { libc_clone(run, top, kind.flags(), body.cast(), nobody, tls, nobody) };
    if pid < 0 {
        let error = io::Error::last_os_error();
        // SAFETY: no thread has taken it.
        drop(unsafe { Box::from_raw(body) });
        return Err(error);
    }
    Ok(())
}

extern "C" fn run(body: *mut c_void) -> c_int {
    set_number();
    PagerScope::forever();
    // SAFETY: sets a variable of this thread.
    unsafe { overspill_pager_at_home() };
    // SAFETY: the box that `start` made for this thread.
    let body = *unsafe { Box::from_raw(body.cast::<Body>()) };
    body();
    0
}

/// Bytes from a thread's own address to its number, as libc has it; 0 if that is not known.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// Notes where libc has the number of the calling thread, whose end the kernel tells by clearing
/// `word`.
pub(super) fn note_number(word: usize) {
    /// More than libc's description of a thread.
    const THREAD_BYTES: usize = 4096;
    // SAFETY: this thread's own address.
    let offset = word.wrapping_sub(unsafe { libc::pthread_self() } as usize);
    NUMBER.store(if offset < THREAD_BYTES { offset } else { 0 }, Relaxed);
}

/// Writes this thread's number where libc has it: who unlocks a lock for readers and writers must
/// not look like nobody, which is 0 there too (`strerror` takes one).
fn set_number() {
    let offset = NUMBER.load(Relaxed);
    if offset > 0 {
        // SAFETY: the number in this thread's own block, which only it uses.
        unsafe { *((libc::pthread_self() as usize + offset) as *mut c_int) = libc::gettid() };
    }
}

/// Frees, in a forked child, the memory of the parent's threads, which do not exist there.
pub(super) fn forget_all() {
    let Ok(linker) = linker() else { return };
    for Room { stack, tls } in ROOMS.lock().unwrap_or_else(|e| e.into_inner()).drain(..) {
        // SAFETY: both were made by `start`, for threads that are not in this process.
        unsafe {
            free_stack(stack);
            (linker.deallocate)(tls as *mut c_void, true);
        }
    }
}

/// Returns the lowest usable address of a new stack, which has a guard page below it.
fn stack() -> io::Result<usize> {
    use rustix::mm::{
        Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect,
    };
    let (protection, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    let len = STACK_BYTES + PAGE_SIZE;
    // SAFETY: new memory at an address of the kernel's choice, its lowest page made inaccessible.
    unsafe {
        let start = mmap_anonymous(std::ptr::null_mut(), len, protection, flags)?;
        mprotect(start, PAGE_SIZE, MprotectFlags::empty())?;
        // Nothing that a core dump of the program needs, and keys were there.
        let _ = madvise(start, len, Advice::LinuxDontDump);
        Ok(start.addr() + PAGE_SIZE)
    }
}

/// Unmaps a stack.
///
/// # Safety
/// It was made by [`stack`], and nothing on it is used again.
unsafe fn free_stack(stack: usize) {
    // SAFETY: contract.
    let _ =
        unsafe { rustix::mm::munmap((stack - PAGE_SIZE) as *mut c_void, STACK_BYTES + PAGE_SIZE) };
}

fn linker() -> io::Result<Linker> {
    linker::get().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSYS))
}

/// Allocates a new thread's thread-local storage; returns its future thread pointer.
fn thread_block() -> io::Result<*mut c_void> {
    // SAFETY: null asks for new memory.
    let block = unsafe { (linker()?.allocate)(std::ptr::null_mut()) };
    if block.is_null() {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    // SAFETY: a new block that no thread uses yet.
    unsafe { head::write(block) };
    Ok(block)
}

/// The head of x86-64's thread block: words 0 and 2 are its own address, 5 and 6 the stack canary
/// and the pointer guard, which are the same for all threads of a process.
#[cfg(target_arch = "x86_64")]
mod head {
    use libc::c_void;

    /// Fills in what the dynamic linker leaves to the creator of the thread.
    ///
    /// # Safety
    /// `block` is from `_dl_allocate_tls`, and not in use.
    pub(super) unsafe fn write(block: *mut c_void) {
        let (canary, guard): (usize, usize);
        // SAFETY: reads two words of this thread's own block.
        unsafe {
            std::arch::asm!("mov {}, fs:0x28", "mov {}, fs:0x30", out(reg) canary, out(reg) guard,
                options(nostack, readonly, preserves_flags));
        }
        let words = block.cast::<usize>();
        // SAFETY: contract.
        unsafe {
            words.write(block.addr());
            words.add(2).write(block.addr());
            words.add(5).write(canary);
            words.add(6).write(guard);
        }
    }
}

/// Elsewhere nothing is left to do: the canary belongs to the process.
#[cfg(not(target_arch = "x86_64"))]
mod head {
    pub(super) unsafe fn write(_: *mut libc::c_void) {}
}
