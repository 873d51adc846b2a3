//! The process's handlers for the signals that touches raise.
//!
//! Owns: the handlers of SIGBUS and SIGSEGV, the previous dispositions, and the table of servers of
//! faults.
//! Invariants: a handler is installed once in a process, when the first space needs it, and stays.
//! It runs with every signal blocked, so no other handler of this thread runs inside it. A server
//! is dropped only after the handlers that use it have returned. A forked child has the handlers
//! and not the memory: what it touches is not served. A signal that is not a fault of ours goes to
//! the previous disposition, with the mask that one asked for; only a switch to an alternate stack
//! is not made. The program's own handler must be installed first: a later one replaces ours and
//! gets the faults of regions.
//!
//! # What may be called in the handler
//! The thread may be anywhere: in the allocator, if a handler of the program interrupted that and
//! touched a region. So the fault path takes no lock but the pager's own and allocates nothing
//! (unless a read fails: its message is allocated). The thread holds none of the pager's locks: the
//! pager touches no managed memory while it holds one, its calls block signals
//! ([`with_signals_blocked`]), and so does this handler.
//!
//! Rejected: SA_ONSTACK. Alternate stacks are made for the few hundred bytes of a report (Rust's
//! own has 8 KiB, of which the kernel's frame takes 3), while the size of the thread's own stack is
//! under its control.

use overspill_base::sync::Arc;
use overspill_base::sync::Ordering::{Relaxed, SeqCst};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize};

/// Maximum number of spaces with faults by signal in a process at a time.
pub(crate) const SPACES_MAX: usize = 64;

static PLACES: [Place; SPACES_MAX] = [const { Place::empty() }; SPACES_MAX];

/// The signal of a touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trap {
    /// SIGBUS, of a userfaultfd.
    Bus,
    /// SIGSEGV, of memory without access.
    Segv,
}

/// What was there before our handler.
struct Former {
    /// The process in which our handler was installed. A forked child may have put its own there
    /// since.
    process: AtomicI32,
    /// The process of which a thread is installing it, or 0.
    installing: AtomicI32,
    /// Never freed: a handler may be reading it.
    disposition: AtomicPtr<libc::sigaction>,
    /// It was a handler to be called once (SA_RESETHAND), and was.
    spent: AtomicBool,
}

/// One for each [`Trap`].
static FORMER: [Former; 2] = [const { Former::new() }; 2];

impl Former {
    const fn new() -> Self {
        Self {
            process: AtomicI32::new(0),
            installing: AtomicI32::new(0),
            disposition: AtomicPtr::new(std::ptr::null_mut()),
            spent: AtomicBool::new(false),
        }
    }
}

impl Trap {
    fn signal(self) -> c_int {
        match self {
            Self::Bus => libc::SIGBUS,
            Self::Segv => libc::SIGSEGV,
        }
    }

    fn former(self) -> &'static Former {
        &FORMER[self as usize]
    }

    /// Installs the handler, once in a process.
    fn install(self) {
        let (former, own) = (self.former(), own_process());
        while former.process.load(SeqCst) != own {
            let installing = former.installing.load(SeqCst);
            let is_ours = installing != own
                && former.installing.compare_exchange(installing, own, SeqCst, SeqCst).is_ok();
            if is_ours {
                self.put_in_front();
                former.process.store(own, SeqCst);
                former.installing.store(0, SeqCst);
            } else {
                std::thread::yield_now();
            }
        }
    }

    fn put_in_front(self) {
        // SAFETY: plain libc calls on local structures; the handler does only what may be done in
        // one. The previous disposition is kept before ours is installed.
        unsafe {
            let mut previous = std::mem::zeroed::<libc::sigaction>();
            libc::sigaction(self.signal(), std::ptr::null(), &raw mut previous);
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_touch;
            if previous.sa_sigaction == handler as libc::sighandler_t {
                return;
            }
            self.former().spent.store(false, SeqCst);
            self.former().disposition.store(Box::into_raw(Box::new(previous)), SeqCst);
            let mut ours = std::mem::zeroed::<libc::sigaction>();
            ours.sa_sigaction = handler as libc::sighandler_t;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigfillset(&raw mut ours.sa_mask);
            libc::sigaction(self.signal(), &raw const ours, std::ptr::null_mut());
        }
    }
}

/// Serves faults that come as signals.
pub(crate) trait ServeFault: Send + Sync {
    /// Brings in the page at `address`, on the calling thread; false if that is not possible.
    /// Called in a signal handler.
    fn serve(&self, address: usize) -> bool;
}

/// Who serves faults, and where.
struct Server {
    /// The process that made it.
    process: i32,
    addresses: Range<usize>,
    faults: Arc<dyn ServeFault>,
}

impl Server {
    fn covers(&self, address: usize) -> bool {
        self.addresses.contains(&address) && self.process == own_process()
    }
}

/// One entry of the table.
///
/// A handler increments the count, then reads `server`; a thread that empties the entry clears
/// `server`, then reads the count. Both are SeqCst, so in their total order either the handler
/// finds nothing or the thread waits for it. Addresses and server are one: an entry that changes
/// hands never seems to cover what it does not.
pub(crate) struct Place {
    /// A box owned by this place, or null.
    server: AtomicPtr<Server>,
    users: AtomicUsize,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Place({:?})", self.server.load(Relaxed))
    }
}

impl Place {
    const fn empty() -> Self {
        Self { server: AtomicPtr::new(std::ptr::null_mut()), users: AtomicUsize::new(0) }
    }

    /// Makes `faults` serve the faults at `addresses`; `None` if the table is full.
    pub(crate) fn take(
        trap: Trap,
        addresses: &Range<usize>,
        faults: Arc<dyn ServeFault>,
    ) -> Option<&'static Self> {
        trap.install();
        let server = Server { process: own_process(), addresses: addresses.clone(), faults };
        let server = Box::into_raw(Box::new(server));
        let claim = |place: &&Place| {
            place.server.compare_exchange(std::ptr::null_mut(), server, SeqCst, SeqCst).is_ok()
        };
        let place = PLACES.iter().find(claim);
        if place.is_none() {
            // SAFETY: our own box, which no place has taken.
            drop(unsafe { Box::from_raw(server) });
        }
        place
    }

    /// Empties the entry; waits for handlers that use it.
    pub(crate) fn leave(&self) {
        let server = self.server.swap(std::ptr::null_mut(), SeqCst);
        while self.users.load(SeqCst) > 0 {
            std::thread::yield_now();
        }
        if !server.is_null() {
            // SAFETY: the box of `take`; no handler uses it, and no later one finds it.
            drop(unsafe { Box::from_raw(server) });
        }
    }

    /// Serves a fault; `None` if it is not here, false if the page cannot be brought in.
    fn serve(&self, address: usize) -> Option<bool> {
        if self.server.load(Relaxed).is_null() {
            return None;
        }
        self.users.fetch_add(1, SeqCst);
        // SAFETY: null, or a box that is there until `leave`, which waits for us.
        let server = unsafe { self.server.load(SeqCst).as_ref() };
        let served = server.filter(|server| server.covers(address));
        let served = served.map(|server| server.faults.serve(address));
        self.users.fetch_sub(1, SeqCst);
        served
    }
}

fn own_process() -> i32 {
    rustix::process::getpid().as_raw_pid()
}

/// Has who has an address serve a fault there; false if nobody does, or the page cannot be brought
/// in.
fn serve(address: usize) -> bool {
    PLACES.iter().find_map(|place| place.serve(address)).unwrap_or(false)
}

extern "C" fn on_touch(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a whole siginfo, whose address is set for faults.
    let (address, sent) = unsafe { ((*info).si_addr().addr(), (*info).si_code <= 0) };
    if !sent {
        // SAFETY: this thread's own errno, which the program may be about to read.
        let errno = unsafe { *libc::__errno_location() };
        let served = serve(address);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        if served {
            return;
        }
    }
    // SAFETY: the arguments the kernel passed to this handler.
    unsafe { chain(signal, info, context, sent) }
}

/// Does what would have happened without us. A fault cannot be ignored: the kernel kills the
/// process.
///
/// # Safety
/// `info` and `context` are those of the handler this is called from.
unsafe fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, sent: bool) {
    let trap = if signal == libc::SIGBUS { Trap::Bus } else { Trap::Segv };
    let Former { disposition, spent, .. } = trap.former();
    // SAFETY: null, or a box that is never freed.
    let Some(previous) = (unsafe { disposition.load(SeqCst).as_ref() }) else { return };
    let once = previous.sa_flags & libc::SA_RESETHAND != 0;
    match previous.sa_sigaction {
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => give_up(signal, sent),
        _ if once && spent.swap(true, Relaxed) => give_up(signal, sent),
        // SAFETY: passed on from the caller.
        _ => unsafe { call(previous, signal, info, context) },
    }
}

/// Restores the default disposition, so that the touch, repeated after the handler returns, kills.
fn give_up(signal: c_int, sent: bool) {
    // SAFETY: plain libc calls that may be made in a handler.
    unsafe {
        let mut default = std::mem::zeroed::<libc::sigaction>();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &raw const default, std::ptr::null_mut());
        if sent {
            libc::raise(signal);
        }
    }
}

/// Calls the previous handler with the signal mask it asked for; that mask ends with this handler.
///
/// # Safety
/// As [`chain`]; `previous` holds a handler.
unsafe fn call(
    previous: &libc::sigaction,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let interrupted = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel's context has the mask of the interrupted code; only as many of its bits
    // are read as there are signals. `sa_sigaction` is a function of the kind that its flags say,
    // given by the program to sigaction for this use.
    unsafe {
        let old = &raw const (*interrupted).uc_sigmask;
        let mut mask = previous.sa_mask;
        for other in (1..=libc::SIGRTMAX()).filter(|&n| libc::sigismember(old, n) == 1) {
            libc::sigaddset(&raw mut mask, other);
        }
        if previous.sa_flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&raw mut mask, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
        if previous.sa_flags & libc::SA_SIGINFO != 0 {
            type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            std::mem::transmute::<usize, Handler>(previous.sa_sigaction)(signal, info, context);
        } else {
            std::mem::transmute::<usize, extern "C" fn(c_int)>(previous.sa_sigaction)(signal);
        }
    }
}

/// Runs `f` with every signal blocked: threads it starts never run the program's handlers, and no
/// handler touches a region while `f` holds a lock that the fault would need.
pub fn with_signals_blocked<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: plain libc calls on local sets; the old mask is put back on the same thread.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        let mut old = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what it is asked for that is not its own.
    struct Own(Range<usize>, AtomicUsize);

    impl ServeFault for Own {
        fn serve(&self, address: usize) -> bool {
            self.1.fetch_add(usize::from(!self.0.contains(&address)), Relaxed);
            self.0.contains(&address)
        }
    }

    /// Who asks while a place changes hands is served by its own.
    #[test]
    fn a_place_that_is_left_or_taken_gets_no_others_faults() {
        let others = || Own(1 << 40..2 << 40, AtomicUsize::new(0));
        let own = Arc::new(Own(1 << 20..2 << 20, AtomicUsize::new(0)));
        let (first, comes_and_goes) = (Arc::new(others()), Arc::new(others()));
        let place = Place::take(Trap::Segv, &first.0, first.clone()).unwrap();
        let mine = Place::take(Trap::Segv, &own.0, own.clone()).unwrap();
        place.leave();
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| (0..300_000).all(|_| serve(1 << 20)));
            while !asks.is_finished() {
                let range = &comes_and_goes.0;
                Place::take(Trap::Segv, range, comes_and_goes.clone()).unwrap().leave();
            }
            assert!(asks.join().unwrap());
        });
        assert_eq!(comes_and_goes.1.load(Relaxed), 0);
        mine.leave();
        assert!(!serve(1 << 20));
    }
}
