//! The pager's threads: fault handlers and the reclaim thread.
//!
//! Owns: the threads, and stopping them at a safe point for fork.
//! Invariants: a parked thread holds no lock and has no I/O in flight. Threads block all signals
//! and never touch managed memory. Idle threads sleep in the kernel. One handler, the leader, waits
//! for messages; it calls an assistant only when more arrive at once than it should serve alone,
//! because every message wakes all threads that sleep on a userfaultfd.
//! Not here: what a fault needs ([`Engine::fault`]).

use crate::placement::Placement;
use crate::space::ManagedSpace;
use crate::traps::with_signals_blocked;
use crate::uffd::Uffd;
use crate::words::FaultMessage;
use overspill_base::clock;
use overspill_base::sync::Ordering::{Acquire, Release};
use overspill_base::sync::{Arc, AtomicBool, Condvar, LockClass, Mutex};
use overspill_engine::{Engine, FaultOutcome, Worker};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

/// How long a handler polls for the next fault before it sleeps. Waking a sleeping CPU costs more.
const SPIN_NS: u64 = 20_000;

/// Number of messages in one read above which an assistant is called.
const LEADER_MESSAGES: usize = 4;

/// The running threads of one pager.
#[derive(Debug)]
pub struct Handlers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    engine: Arc<Engine>,
    space: Arc<ManagedSpace>,
    /// Number of fault handlers: the leader and its assistants.
    handlers: usize,
    /// Becomes readable when handlers must look at `gate`.
    bell: OwnedFd,
    /// Counts calls for assistants; each answers one.
    calls: OwnedFd,
    /// Set while `gate` holds a command, so that loops need not lock it.
    attention: AtomicBool,
    gate: Mutex<Gate>,
    moved: Condvar,
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
    /// Starts the threads. There are no fault handlers where all faults are signals.
    ///
    /// # Errors
    /// Errors of thread creation and eventfd.
    pub fn start(engine: Arc<Engine>, space: Arc<ManagedSpace>) -> std::io::Result<Self> {
        let has_messages = space.source().userfault().is_some();
        let handlers = if has_messages { clock::cpu_count().div_ceil(2).min(4) } else { 0 };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            engine,
            space,
            handlers,
            bell: eventfd(0, flags)?,
            calls: eventfd(0, flags | EventfdFlags::SEMAPHORE)?,
            attention: AtomicBool::new(false),
            gate: Mutex::new(LockClass::Control, Gate::default()),
            moved: Condvar::new(),
        });
        let mut threads = Vec::new();
        for is_leader in (0..handlers).map(|n| n == 0) {
            let body = move |shared: &Shared, worker: &mut Worker| {
                if let Some(uffd) = shared.space.source().userfault() {
                    shared.serve_faults(worker, uffd, is_leader);
                }
            };
            threads.push(shared.spawn("ovs-fault", body)?);
        }
        threads.push(shared.spawn("ovs-reclaim", Shared::reclaim)?);
        threads.push(shared.spawn("ovs-ahead", Shared::read_ahead)?);
        Ok(Self { shared, threads })
    }

    /// Stops every thread where it holds no lock and has no I/O in flight. Blocks for the I/O.
    pub fn park(&self) {
        self.shared.command(|gate| gate.parking = true);
        let mut gate = self.shared.gate.lock();
        while gate.parked < self.threads.len() {
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
    ) -> std::io::Result<JoinHandle<()>> {
        let mut worker = Worker::new(&self.engine)?;
        let shared = self.clone();
        let builder = std::thread::Builder::new().name(name.into());
        with_signals_blocked(|| builder.spawn(move || body(&shared, &mut worker)))
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

    fn serve_faults(&self, worker: &mut Worker, uffd: &Uffd, is_leader: bool) {
        let mut messages = [FaultMessage { address: 0, thread: 0 }; 32];
        let mut placement = Placement::new();
        let mut stall = Stall { engine: &self.engine, begun: false };
        let mut idle_since = clock::now_ns();
        while self.attend(worker, Some(&mut placement)) {
            let Ok(count) = uffd.read(&mut messages) else { return };
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
                self.sleep(worker, (!is_leader).then_some(&self.calls), uffd, &mut placement);
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
        if messages.len() > LEADER_MESSAGES && self.handlers > 1 {
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
        placement.release(pending);
        Served { busy: messages.len() + finished > 0, reading }
    }

    fn serve(&self, worker: &mut Worker, messages: &[FaultMessage], start_ns: u64) {
        for message in messages {
            let page = self.space.page_at(message.address);
            match self.engine.fault(worker, page, start_ns) {
                FaultOutcome::Mapped | FaultOutcome::Pending | FaultOutcome::Poisoned => {}
                FaultOutcome::Stray => self.space.refuse(page),
                FaultOutcome::OutOfMemory => {
                    self.space.say_out_of_memory(&self.engine);
                    overspill_engine::AddressSpace::poison(&*self.space, page);
                }
            }
        }
    }

    /// Sleeps until there is something to serve, a completion or a command. The leader waits for
    /// messages, an assistant for the leader's calls.
    fn sleep(
        &self,
        worker: &Worker,
        calls: Option<&OwnedFd>,
        uffd: &Uffd,
        placement: &mut Placement,
    ) {
        let wake = calls.map_or(uffd.as_fd(), AsFd::as_fd);
        let mut fds: Vec<PollFd<'_>> = vec![readable(wake), readable(self.bell.as_fd())];
        fds.extend(worker.poll_fds().map(readable));
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
        calls.into_iter().for_each(drain);
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

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

fn drain(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0u8; 8]);
}
