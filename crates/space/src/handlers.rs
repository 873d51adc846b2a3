//! The pager's threads: fault handlers and the reclaim thread.
//!
//! Owns: the threads, and stopping them at a safe point for fork.
//! Invariants: a parked thread holds no lock and has no I/O in flight. Threads block all signals
//! and never touch managed memory. Idle threads sleep in the kernel. One handler, the leader, waits
//! for messages; it calls an assistant only when more arrive at once than it should serve alone,
//! because every message wakes all threads that sleep on a userfaultfd.
//! Not here: what a fault needs ([`Engine::fault`]).

use crate::placement::Placement;
use crate::sigbus::with_signals_blocked;
use crate::space::{ManagedSpace, readable};
use crate::words::FaultMessage;
use overspill_base::clock;
use overspill_base::sync::Ordering::{Acquire, Release};
use overspill_base::sync::{Arc, AtomicBool, Condvar, LockClass, Mutex};
use overspill_engine::{Engine, FaultOutcome, Worker};
use rustix::event::{EventfdFlags, PollFd, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::Pid;
use std::thread::JoinHandle;

/// How long a handler polls for the next fault before it sleeps. Waking a sleeping CPU costs more.
const SPIN_NS: u64 = 20_000;

/// Number of messages in one read above which an assistant is called.
const LEADER_MESSAGES: usize = 4;

/// How the threads behave.
#[derive(Clone)]
pub struct HandlerOptions {
    /// Number of fault handlers: the leader and its assistants, without the reclaim thread.
    pub handlers: usize,
    /// Decides what to do when memory has run out, after that was reported. If it returns, the page
    /// that could not be brought in is poisoned.
    pub on_out_of_memory: fn(&Engine),
    /// The process whose threads are served: this one, unless the pager is apart from it.
    pub process: fn() -> Pid,
    /// True if the calls of that process's threads are seen that ask for their CPUs, or pass them
    /// on ([`restore_own_cpus`](crate::restore_own_cpus)).
    pub sees_affinity: bool,
    /// How threads are started.
    pub spawn: Spawn,
}

/// Starts a thread with a name; returns `None` if it cannot be joined.
pub type Spawn =
    fn(&'static str, Box<dyn FnOnce() + Send>) -> std::io::Result<Option<JoinHandle<()>>>;

/// Starts a thread of this process, with every signal blocked.
fn spawn_here(
    name: &'static str,
    body: Box<dyn FnOnce() + Send>,
) -> std::io::Result<Option<JoinHandle<()>>> {
    let builder = std::thread::Builder::new().name(name.into());
    with_signals_blocked(|| builder.spawn(body)).map(Some)
}

impl Default for HandlerOptions {
    fn default() -> Self {
        Self {
            handlers: clock::cpu_count().div_ceil(2).min(4),
            on_out_of_memory: |_| {},
            process: rustix::process::getpid,
            sees_affinity: false,
            spawn: spawn_here,
        }
    }
}

/// The running threads of one pager.
#[derive(Debug)]
pub struct Handlers {
    shared: Arc<Shared>,
    /// The number of threads, and those of them that can be joined.
    count: usize,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    engine: Arc<Engine>,
    space: Arc<ManagedSpace>,
    options: HandlerOptions,
    /// Becomes readable when handlers must look at `gate`.
    bell: OwnedFd,
    /// Counts calls for assistants; each answers one.
    calls: OwnedFd,
    /// Set while `gate` holds a command, so that loops need not lock it.
    attention: AtomicBool,
    gate: Mutex<Gate>,
    moved: Condvar,
}

/// What an idle handler sleeps for.
enum WakeSource {
    /// The leader: messages.
    Messages(OwnedFd),
    /// An assistant: a call by the leader.
    Calls(OwnedFd),
}

#[derive(Debug, Default)]
struct Gate {
    parking: bool,
    stopping: bool,
    parked: usize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Handlers {
    /// Starts the threads.
    ///
    /// # Errors
    /// Errors of thread creation and eventfd.
    pub fn start(
        engine: Arc<Engine>,
        space: Arc<ManagedSpace>,
        options: HandlerOptions,
    ) -> std::io::Result<Self> {
        let handlers = options.handlers;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            engine,
            space,
            options,
            bell: eventfd(0, flags)?,
            calls: eventfd(0, flags | EventfdFlags::SEMAPHORE)?,
            attention: AtomicBool::new(false),
            gate: Mutex::new(LockClass::Control, Gate::default()),
            moved: Condvar::new(),
        });
        let (count, mut threads) = (handlers + 2, Vec::new());
        for n in 0..handlers {
            let source = match n {
                0 => WakeSource::Messages(shared.space.dup_uffd()?),
                _ => WakeSource::Calls(shared.calls.try_clone()?),
            };
            let fault_loop = move |shared: &Shared, worker: &mut Worker| {
                shared.serve_faults(worker, &source);
            };
            threads.extend(shared.spawn("ovs-fault", fault_loop)?);
        }
        if shared.space.waits_by_signal() {
            let space = shared.space.clone();
            let ring = move || space.ring();
            (shared.options.spawn)("ovs-touch", Box::new(ring))?;
        }
        threads.extend(shared.spawn("ovs-reclaim", Shared::reclaim)?);
        threads.extend(shared.spawn("ovs-ahead", Shared::read_ahead)?);
        Ok(Self { shared, count, threads })
    }

    /// Stops every thread where it holds no lock and has no I/O in flight. Blocks for the I/O.
    pub fn park(&self) {
        self.shared.command(|gate| gate.parking = true);
        let mut gate = self.shared.gate.lock();
        while gate.parked < self.count {
            gate = self.shared.moved.wait(gate);
        }
    }

    /// Resumes parked threads.
    pub fn unpark(&self) {
        self.shared.attention.store(false, Release);
        drain(&self.shared.bell);
        self.shared.gate.lock().parking = false;
        self.shared.moved.notify_all();
    }

    /// Stops the threads and waits until they have ended.
    pub fn stop(self) {
        self.shared.command(|gate| gate.stopping = true);
        for thread in self.threads {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn spawn(
        self: &Arc<Self>,
        name: &'static str,
        body: impl FnOnce(&Shared, &mut Worker) + Send + 'static,
    ) -> std::io::Result<Option<JoinHandle<()>>> {
        let mut worker = Worker::new(&self.engine)?;
        let shared = self.clone();
        (self.options.spawn)(name, Box::new(move || body(&shared, &mut worker)))
    }

    fn command(&self, change: impl FnOnce(&mut Gate)) {
        change(&mut self.gate.lock());
        self.attention.store(true, Release);
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        self.engine.wake_background();
    }

    /// Parks if requested; false if the thread must end.
    fn attend(&self, worker: &mut Worker, placement: Option<&mut Placement>) -> bool {
        if !self.attention.load(Acquire) {
            return true;
        }
        worker.finish(&self.engine);
        placement.into_iter().for_each(Placement::rest);
        let mut gate = self.gate.lock();
        if gate.parking {
            gate.parked += 1;
            self.moved.notify_all();
            while gate.parking {
                gate = self.moved.wait(gate);
            }
            gate.parked -= 1;
        }
        !gate.stopping
    }

    fn serve_faults(&self, worker: &mut Worker, source: &WakeSource) {
        let mut messages = [FaultMessage { address: 0, thread: 0 }; 32];
        let mut placement = Placement::new((self.options.process)(), self.options.sees_affinity);
        let mut stall = Stall { engine: &self.engine, begun: false };
        let mut idle_since = clock::now_ns();
        while self.attend(worker, Some(&mut placement)) {
            let read = self.space.with_uffd(|uffd| uffd.read(&mut messages));
            let Ok(count) = read else { return };
            if count > 0 {
                stall.note(true);
            }
            let Served { busy, reading } =
                self.serve_placed(worker, &mut placement, &messages[..count]);
            stall.note(reading);
            let now_ns = clock::now_ns();
            // Stacked threads cannot resume, and fault again, before we sleep.
            if busy {
                idle_since = now_ns;
            }
            if placement.is_stacked() || now_ns - idle_since > SPIN_NS {
                self.sleep(worker, source, &mut placement);
                idle_since = clock::now_ns();
            } else if !busy {
                std::hint::spin_loop();
            }
        }
    }

    /// Serves messages and completions.
    fn serve_placed(
        &self,
        worker: &mut Worker,
        placement: &mut Placement,
        messages: &[FaultMessage],
    ) -> Served {
        if messages.len() > LEADER_MESSAGES && self.options.handlers > 1 {
            let _ = rustix::io::write(&self.calls, &1u64.to_ne_bytes());
        }
        let start_ns = clock::now_ns();
        placement.arrived(messages, start_ns);
        worker.reclaims = placement.is_stacked();
        self.serve(worker, messages, start_ns);
        let finished = worker.poll(&self.engine);
        let now_ns = clock::now_ns();
        placement.served(messages.len(), now_ns - start_ns);
        let reading = worker.in_flight() > 0;
        let pending = |address| reading && !self.engine.is_mapped(self.space.page_at(address));
        placement.release(now_ns, pending);
        Served { busy: messages.len() + finished > 0, reading }
    }

    fn serve(&self, worker: &mut Worker, messages: &[FaultMessage], start_ns: u64) {
        for message in messages {
            let page = self.space.page_at(message.address);
            match self.engine.fault(worker, page, start_ns) {
                FaultOutcome::Mapped | FaultOutcome::Pending | FaultOutcome::Poisoned => {}
                FaultOutcome::Stray => self.space.refuse(page),
                FaultOutcome::OutOfMemory => {
                    (self.options.on_out_of_memory)(&self.engine);
                    overspill_engine::AddressSpace::poison(&*self.space, page);
                }
            }
        }
    }

    /// Sleeps until there is something to serve, a completion or a command.
    fn sleep(&self, worker: &Worker, source: &WakeSource, placement: &mut Placement) {
        let (WakeSource::Messages(wake) | WakeSource::Calls(wake)) = source;
        let mut fds: Vec<PollFd<'_>> = vec![readable(wake.as_fd()), readable(self.bell.as_fd())];
        fds.extend(worker.poll_fds().map(readable));
        let is_leader = matches!(source, WakeSource::Messages(_));
        if is_leader && !self.space.sleeps() {
            return;
        }
        // After EINTR or any other error: look again.
        if placement.is_stacked() {
            let nanos = placement.patience_ns() as i64;
            let patience = Timespec { tv_sec: 0, tv_nsec: nanos };
            if poll(&mut fds, Some(&patience)) == Ok(0) && !placement.release_all() {
                placement.rest();
            }
        }
        if !placement.is_stacked() {
            let _ = poll(&mut fds, None);
        }
        if let WakeSource::Calls(calls) = source {
            drain(calls);
        }
    }

    fn read_ahead(&self, worker: &mut Worker) {
        while self.attend(worker, None) {
            self.engine.read_ahead(worker, || self.attention.load(Acquire));
        }
    }

    fn reclaim(&self, worker: &mut Worker) {
        while self.attend(worker, None) {
            self.engine.balance(worker, || self.attention.load(Acquire));
        }
    }
}

/// What came of a look at messages and completions.
struct Served {
    /// There were any.
    busy: bool,
    /// Reads are under way.
    reading: bool,
}

/// Whether threads wait for one of ours, as the counters have it.
struct Stall<'a> {
    engine: &'a Engine,
    begun: bool,
}

impl Stall<'_> {
    fn note(&mut self, waited_for: bool) {
        match (std::mem::replace(&mut self.begun, waited_for), waited_for) {
            (false, true) => self.engine.stats().stall_begins(),
            (true, false) => self.engine.stats().stall_ends(),
            _ => {}
        }
    }
}

impl Drop for Stall<'_> {
    fn drop(&mut self) {
        self.note(false);
    }
}

fn drain(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0u8; 8]);
}
