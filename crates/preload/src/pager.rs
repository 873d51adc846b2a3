//! The pager of this process.
//!
//! Owns: finding the session, starting, and the one global through which interposed functions reach
//! it.
//! Not here: anything a particular function does.

use crate::heap::{PagerScope, in_pager};
use crate::signals;
use crate::{apart, calls, environment, fork, go, limits, linker, sandbox, thread};
use libc::c_char;
use overspill::escapes;
use overspill::pager::Pager;
use overspill::session::{Address, Channel, Opened, Session, verdict};
use overspill_base::PAGE_SIZE;
use overspill_engine::Engine;
use overspill_space::{HandlerOptions, ManagedMemory};
use rustix::process::Pid;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// Everything that interposed functions need.
pub(crate) struct Process {
    pub(crate) session: Arc<Session>,
    /// Address of the supervisor, for children.
    pub(crate) address: Address,
    pub(crate) pager: Pager,
    /// Shared by every memory call, exclusive from the start of a fork to its end.
    pub(crate) gate: RwLock<()>,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

/// The managed range, for [`is_managed`]. START is published last (Release) and read first
/// (Acquire).
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);

/// Returns true if `address` is in the managed range; asked at every `free`.
#[inline]
pub(crate) fn is_managed(address: usize) -> bool {
    let start = START.load(Acquire);
    start != 0 && address.wrapping_sub(start) < LEN.load(Relaxed)
}

/// Address space that the pager takes: the managed range and all tables.
static TAKEN: OnceLock<limits::Sizes> = OnceLock::new();

/// Returns the address space that the pager takes; zeros if it does not run.
pub(crate) fn taken() -> limits::Sizes {
    TAKEN.get().copied().unwrap_or_default()
}

/// Returns the process's pager, for calls by the program; none while it does not run, and none on
/// the pager's own threads.
#[inline]
pub(crate) fn process() -> Option<&'static Process> {
    if START.load(Acquire) == 0 || in_pager() { None } else { PROCESS.get() }
}

/// Returns the pager, on any thread.
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

    /// Runs a memory call for the program: not during a fork, with allocations from libc's heap,
    /// with signals blocked, and not on a stack that may itself be swapped out while the pager's
    /// locks are held (coroutines). If it cannot run here, it runs in the pager's process. `f`
    /// refers to nothing on the caller's stack.
    pub(crate) fn call<R: Send>(&'static self, f: impl FnOnce(&ManagedMemory) -> R + Send) -> R {
        let call = move || {
            let _gate = self.gate();
            f(self.memory())
        };
        let filtered = sandbox::is_filtered();
        if !filtered && apart::is_foreign() {
            return apart::run_there_kept(call);
        }
        let _scope = PagerScope::enter();
        let here = 0u8;
        if filtered || is_managed((&raw const here).addr()) {
            return apart::run_there(call);
        }
        signals::blocked(call)
    }
}

/// Tells the user something through the supervisor, on its standard error, because the program's
/// may be a data file by now; without a channel, on the program's.
pub(crate) fn say(message: &str) {
    if !apart::tell(message) {
        let line = format!("overspill: {message}\n");
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    }
}

/// Runs before all code of the program: see build.rs.
pub(crate) fn start(environment: *mut *mut c_char) {
    // SAFETY: what libc passes to every constructor.
    let Some(address) = (unsafe { environment::session(environment) }) else { return };
    let _scope = PagerScope::enter();
    std::panic::set_hook(Box::new(|info| {
        say(&format!("a bug in the pager ends this program: {info}"));
        std::process::abort();
    }));
    linker::prepare();
    thread::prepare();
    fork::prepare_libc();
    let before = limits::Sizes::now();
    match apart::start(None, Box::new(move || join(&address))) {
        Ok(()) => {
            let _ = TAKEN.set(limits::Sizes::now().since(before));
            fork::register();
            begin(environment);
        }
        Err(reason) => {
            say(&reason);
            // SAFETY: ends the process before the program has begun.
            unsafe { libc::_exit(125) }
        }
    }
}

/// Joins the run, in the pager's process.
fn join(address: &str) -> Result<(), String> {
    let alone = |error: &dyn std::fmt::Display| {
        let note = format!("this program runs in all the memory it likes: {error}");
        *NOTE.lock().unwrap_or_else(|e| e.into_inner()) = Some(note);
        Ok(())
    };
    let mut address: Address = match address.parse() {
        Ok(address) => address,
        Err(error) => return alone(&error),
    };
    let opened = Channel::join(&mut address, apart::program()).and_then(|channel| {
        let opened = Session::open(channel.descriptors()?)?;
        apart::keep(channel);
        Ok(opened)
    });
    let Opened { session, devices, proc, userfault } = match opened {
        Ok(opened) => opened,
        Err(error) => return alone(&error),
    };
    if go::is_program(proc.as_ref()) {
        // It goes on with what is libc's; the summary says so.
        session.add_verdict(escapes::GO_PROGRAM);
        return Ok(());
    }
    proc.into_iter().for_each(overspill_space::own::look_through);
    userfault.into_iter().for_each(overspill_space::uffd::open_through);
    let (first, session) = (!session.has_joined(), Arc::new(session));
    let _ = FORMER.set(session.former_pagers_of(apart::program()));
    match session.join(devices, apart::program(), handler_options(), say) {
        Ok((pager, _)) => {
            apart::entrust_faults(pager.memory().space())?;
            session.take_areas(&pager, &address).unwrap_or_else(|error| without_area(&error));
            session.leave_areas(&pager, apart::close_device);
            publish(session, address, pager);
            Ok(())
        }
        Err(error) if first => Err(error.to_string()),
        Err(error) => alone(&error),
    }
}

/// Has this process swap to the areas that were added to the run, and leave those that are taken
/// away, unless it forks: then later.
pub(crate) fn follow_areas() {
    let Some(process) = any_process() else { return };
    // Without waiting: who forks waits for errands.
    let Ok(_gate) = process.gate.try_read() else { return };
    let taken = process.session.take_areas(&process.pager, &process.address);
    taken.unwrap_or_else(|error| without_area(&error));
    process.session.leave_areas(&process.pager, apart::close_device);
}

fn without_area(error: &dyn std::fmt::Display) {
    say(&format!("process {} does without the swap that was added: {error}", apart::program()));
}

/// The pagers of this process's former images, our children, which only we can reap.
static FORMER: OnceLock<Vec<Pid>> = OnceLock::new();

/// A message printed before the program begins, on its own standard error, as there may be no other
/// way.
static NOTE: Mutex<Option<String>> = Mutex::new(None);

/// Runs on the program's thread, when the pager runs.
fn begin(environment: *mut *mut c_char) {
    let note = NOTE.lock().unwrap_or_else(|e| e.into_inner()).take();
    note.iter().for_each(|note| say(note));
    let Some(process) = any_process() else { return };
    limits::inherit(process);
    FORMER.get().into_iter().flatten().for_each(|&former| reap(former));
    if let Err(reason) = calls::begin(process) {
        say(&reason);
        // SAFETY: ends the process before the program has begun.
        unsafe { libc::_exit(125) }
    }
    if !process.session.settings().children {
        // SAFETY: the program has not begun, so no other thread reads the environment.
        unsafe { environment::forget(environment) };
    }
}

/// Longest time for the end of a former image's pager, which notices it within some milliseconds.
const FORMER_PATIENCE: Duration = Duration::from_millis(200);

/// Reaps a former image's pager as soon as it has ended.
fn reap(former: Pid) {
    // Not a child of the program that has its number now: __WCLONE excludes those.
    let how = libc::WEXITED | libc::__WCLONE | libc::WNOHANG;
    let deadline = Instant::now() + FORMER_PATIENCE;
    let is_alive = || {
        // SAFETY: a structure of plain numbers.
        let mut ended: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let (pid, at) = (former.as_raw_pid(), (&raw mut ended).addr());
        // SAFETY: looks at a child, and writes how it ended; all zeros if it has not.
        let found = unsafe { libc::syscall(libc::SYS_waitid, libc::P_PID, pid, at, how, 0usize) };
        found == 0 && ended.si_signo == 0
    };
    while is_alive() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn publish(session: Arc<Session>, address: Address, pager: Pager) {
    let space = pager.memory().space().clone();
    space.let_fork_copy(false);
    LEN.store(space.pages() * PAGE_SIZE, Relaxed);
    let process = Process { session, address, pager, gate: RwLock::new(()) };
    if PROCESS.set(process).is_ok() {
        START.store(space.address_of(overspill_base::PageNo(0)), Release);
    }
}

pub(crate) fn handler_options() -> HandlerOptions {
    HandlerOptions {
        on_out_of_memory: out_of_memory,
        process: apart::program,
        sees_affinity: true,
        spawn: apart::spawn,
        ..HandlerOptions::default()
    }
}

/// Memory has run out: says why and ends the process, as the kernel would.
fn out_of_memory(engine: &Engine) {
    if let Some(process) = any_process() {
        process.session.add_verdict(verdict::OUT_OF_MEMORY);
    }
    let why = engine.last_error().unwrap_or_else(|| "no page can be moved out".into());
    let limit = overspill::Bytes::of_pages(engine.limit_frames() as u64);
    say(&format!("out of memory, program killed: the limit of {limit} is full, and {why}"));
    let _ = rustix::process::kill_process(apart::program(), rustix::process::Signal::KILL);
}
