//! The pager of this process.
//!
//! Owns: finding the session, starting, and the one global through which interposed functions reach
//! it. Not here: anything a particular function does.

use crate::heap::{PagerScope, in_pager};
use crate::{fds, fork, limits};
use overspill::pager::Pager;
use overspill::session::{SESSION_VARIABLE, Session, verdict};
use overspill_base::PAGE_SIZE;
use overspill_engine::Engine;
use overspill_space::{HandlerOptions, ManagedMemory};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard};

/// Everything interposed functions need.
pub(crate) struct Process {
    pub(crate) session: Arc<Session>,
    pub(crate) pager: Pager,
    /// Shared by every memory call, exclusive from the start of a fork to its end.
    pub(crate) gate: RwLock<()>,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

/// The managed range, for [`is_managed`]. START is published last (Release) and read first (Acquire).
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);

/// True if `address` is in the managed range: the question every `free` asks.
#[inline]
pub(crate) fn is_managed(address: usize) -> bool {
    let start = START.load(Acquire);
    start != 0 && address.wrapping_sub(start) < LEN.load(Relaxed)
}

/// What the pager takes of the process's address space, the managed range and all tables.
static TAKEN: OnceLock<limits::Sizes> = OnceLock::new();

/// What the pager takes of the process's address space; nothing when it does not run.
pub(crate) fn taken() -> limits::Sizes {
    TAKEN.get().copied().unwrap_or_default()
}

/// The process's pager, for calls the program makes; none while it does not run, and none for the
/// pager's own threads.
#[inline]
pub(crate) fn process() -> Option<&'static Process> {
    if START.load(Acquire) == 0 || in_pager() { None } else { PROCESS.get() }
}

/// The pager, whoever asks.
pub(crate) fn any_process() -> Option<&'static Process> {
    PROCESS.get()
}

impl Process {
    pub(crate) fn memory(&self) -> &ManagedMemory {
        self.pager.memory()
    }

    fn gate(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Runs a memory call for the program: not during a fork, with allocations from libc's heap, and
    /// not on a stack that may itself be paged out while the pager's locks are held.
    pub(crate) fn call<R: Send>(&'static self, f: impl FnOnce(&ManagedMemory) -> R + Send) -> R {
        let _scope = PagerScope::enter();
        off_stack(move || {
            let _gate = self.gate();
            f(self.memory())
        })
    }
}

/// Runs `f` here, or on a thread of its own if the stack here is managed memory (coroutines).
fn off_stack<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    let here = 0u8;
    if !is_managed((&raw const here).addr()) {
        return f();
    }
    std::thread::scope(|scope| scope.spawn(f).join().unwrap_or_else(|_| std::process::abort()))
}

/// Writes a line for the user.
pub(crate) fn say(message: &str) {
    let line = format!("overspill: {message}\n");
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}

pub(crate) extern "C" fn start() {
    let Some(path) = std::env::var_os(SESSION_VARIABLE).map(PathBuf::from) else { return };
    let _scope = PagerScope::enter();
    std::panic::set_hook(Box::new(|info| {
        say(&format!("a bug in the pager ends this program: {info}"));
        std::process::abort();
    }));
    fork::settle_libc();
    let high = fds::HighNumbers::only();
    let before = limits::Sizes::now();
    let session = match Session::open(&path) {
        Ok(session) => Arc::new(session),
        Err(error) => {
            say(&format!("this program runs in all the memory it likes: {error}"));
            return;
        }
    };
    let first = !session.has_joined();
    if !session.settings().children {
        forget_environment();
    }
    match session.join(handler_options(), say) {
        Ok((pager, _)) => {
            fds::protect(high);
            let _ = TAKEN.set(limits::Sizes::now().since(before));
            publish(session, pager);
        }
        Err(error) if first => {
            say(&error.to_string());
            // SAFETY: ends the process before the program has begun.
            unsafe { libc::_exit(125) }
        }
        Err(error) => say(&format!("this program runs in all the memory it likes: {error}")),
    }
}

fn publish(session: Arc<Session>, pager: Pager) {
    fork::register();
    let space = pager.memory().space().clone();
    LEN.store(space.pages() * PAGE_SIZE, Relaxed);
    let process = Process { session, pager, gate: RwLock::new(()) };
    if PROCESS.set(process).is_ok() {
        START.store(space.address_of(overspill_base::PageNo(0)), Release);
    }
}

pub(crate) fn handler_options() -> HandlerOptions {
    HandlerOptions { on_out_of_memory: out_of_memory, ..HandlerOptions::default() }
}

/// Memory has ended: says why and ends the process, as the kernel would.
fn out_of_memory(engine: &Engine) {
    if let Some(process) = any_process() {
        process.session.add_verdict(verdict::OUT_OF_MEMORY);
    }
    let why = engine.last_trouble().unwrap_or_else(|| "no page can be moved out".into());
    let limit = overspill::Bytes::of_pages(engine.status().frames as u64);
    say(&format!("out of memory, program killed: the limit of {limit} is full, and {why}"));
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

/// Keeps programs that this one starts from finding us.
fn forget_environment() {
    // SAFETY: the program has not begun, so no other thread reads the environment.
    unsafe {
        std::env::remove_var(SESSION_VARIABLE);
        match std::env::var("LD_PRELOAD") {
            Ok(list) => match list.split_once([':', ' ']) {
                Some((_, others)) => std::env::set_var("LD_PRELOAD", others),
                None => std::env::remove_var("LD_PRELOAD"),
            },
            Err(_) => std::env::remove_var("LD_PRELOAD"),
        }
    }
}
