//! The published workload: tasks that touch random pages of a set larger than memory.
//!
//! Owns: the tasks and their phases. Every thread first touches its part of its process's pages;
//! some time after all have done so, counting begins, and it ends a given time later.
//! Invariants: every access verifies what it finds. At the end nothing is in flight, and the
//! counter equations of every engine hold ([`Engine::check`]).
//! Source: pmbench, 80 % reads, uniform random pages, as the kernel's results were measured with
//! it.
//! Not here: what the counts mean (`sample`).

use crate::machine::{Pattern, Plan};
use crate::network::Servers;
use crate::node::Node;
use crate::sample::{Latencies, Ping, Reading};
use crate::space::Touch;
use overspill_base::{PageNo, clock};
use overspill_engine::{Engine, FaultOutcome, Worker};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Writes in 256 accesses: a fifth.
const WRITES: u8 = 51;

/// Time between packets.
const PING_PERIOD_NS: u64 = 1_000_000;
/// How often a packet checks whether interrupts are enabled.
const PING_POLL_NS: u64 = 1_000;
/// Round trip of a packet that does not have to wait, on a local network of the time.
const ROUND_TRIP_NS: u64 = 70_000;

/// State shared by all tasks of a run.
pub(crate) struct Run {
    pub(crate) nodes: Vec<Node>,
    servers: Option<Arc<Servers>>,
    settle_ns: u64,
    time_ns: u64,
    pattern: Pattern,
    seed: u64,
    threads: usize,
    pings: RefCell<Vec<u64>>,
    populated: Cell<usize>,
    /// Start and end of counting.
    window: Cell<Option<(u64, u64)>>,
    accesses: Cell<u64>,
    pub(crate) latencies: RefCell<Latencies>,
    first: RefCell<Option<Reading>>,
    last: RefCell<Option<Reading>>,
    ended: Cell<usize>,
}

/// One thread of a process.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) number: usize,
    pub(crate) node: usize,
    /// Its process's pages.
    pub(crate) pages: Range<u32>,
    /// The pages it touches first.
    pub(crate) part: Range<u32>,
}

impl Run {
    pub(crate) fn new(
        nodes: Vec<Node>,
        servers: Option<Arc<Servers>>,
        plan: &Plan,
        seed: u64,
    ) -> Rc<Self> {
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        let (settle_ns, time_ns) = (ns(plan.settle_s), ns(plan.seconds));
        // If no page is touched twice, only the time determines the start.
        let from = (plan.pattern == Pattern::Fresh).then_some(settle_ns);
        Rc::new(Self {
            nodes,
            servers,
            settle_ns,
            time_ns,
            pattern: plan.pattern,
            seed,
            threads: plan.threads,
            pings: RefCell::new(Vec::new()),
            populated: Cell::new(0),
            window: Cell::new(from.map(|from| (from, from + time_ns))),
            accesses: Cell::new(0),
            latencies: RefCell::new(Latencies::new()),
            first: RefCell::new(None),
            last: RefCell::new(None),
            ended: Cell::new(0),
        })
    }

    /// Returns the readings at both ends of the window.
    pub(crate) fn readings(&self) -> (Reading, Reading) {
        let taken = |reading: &RefCell<Option<Reading>>| {
            reading.borrow().clone().expect("the window has passed")
        };
        (taken(&self.first), taken(&self.last))
    }

    fn read(&self) -> Reading {
        let stats: Vec<_> = self.nodes.iter().map(|node| node.engine.stats()).collect();
        let servers = self.servers.as_ref().map(|servers| servers.busy_ns());
        Reading::now(self.accesses.get(), &stats, servers.unwrap_or_default())
    }

    /// Takes the readings at the window's ends; returns true when the run is over.
    fn is_over(&self) -> bool {
        let Some((from, until)) = self.window.get() else { return false };
        let now_ns = clock::now_ns();
        if now_ns >= from && self.first.borrow().is_none() {
            *self.first.borrow_mut() = Some(self.read());
        }
        if now_ns >= until && self.last.borrow().is_none() {
            *self.last.borrow_mut() = Some(self.read());
        }
        now_ns >= until
    }

    fn is_counting(&self) -> bool {
        self.first.borrow().is_some() && self.last.borrow().is_none()
    }

    /// Runs a thread.
    pub(crate) fn thread(&self, thread: &Thread) {
        let node = &self.nodes[thread.node];
        let mut worker = new_worker(&node.engine);
        for page in thread.part.clone() {
            self.access(node, &mut worker, PageNo(page), true);
            if self.pattern == Pattern::Fresh && self.is_over() {
                break;
            }
        }
        self.has_populated();
        let mut random = fastrand::Rng::with_seed(self.seed << 16 ^ thread.number as u64);
        while !self.is_over() {
            let page = PageNo(random.u32(thread.pages.clone()));
            self.access(node, &mut worker, page, random.u8(..) < WRITES);
            self.accesses.set(self.accesses.get() + 1);
        }
        worker.finish(&node.engine);
        self.ended.set(self.ended.get() + 1);
        self.nodes.iter().for_each(|node| node.engine.wake_background());
    }

    fn has_populated(&self) {
        self.populated.set(self.populated.get() + 1);
        if self.populated.get() == self.threads && self.pattern == Pattern::Random {
            let from = clock::now_ns() + self.settle_ns;
            self.window.set(Some((from, from + self.time_ns)));
            self.servers.iter().for_each(|servers| servers.die_at(from));
        }
    }

    fn access(&self, node: &Node, worker: &mut Worker, page: PageNo, writes: bool) {
        overspill_vcpu::charge_by(|costs| costs.access_ns);
        let mut missing_since = None;
        loop {
            match node.space.touch(page, writes) {
                Touch::Done => break,
                Touch::Poisoned => panic!("page {page} was lost"),
                Touch::Missing => {}
            }
            missing_since.get_or_insert_with(clock::now_ns);
            overspill_vcpu::charge_by(|costs| costs.fault_ns);
            match node.engine.fault_in_place(worker, page) {
                FaultOutcome::Mapped | FaultOutcome::Pending => {}
                outcome => panic!("{outcome:?}: {:?}", node.engine.last_error()),
            }
        }
        if let Some(since) = missing_since.filter(|_| self.is_counting()) {
            self.latencies.borrow_mut().add(clock::now_ns() - since);
        }
    }

    /// Runs a network card whose packets interrupt `cpu`: one at a time, like `ping -i`. Each is
    /// answered when the CPU takes interrupts.
    pub(crate) fn packets(&self, cpu: u32) {
        let mut at_ns = PING_PERIOD_NS;
        while self.ended.get() < self.threads {
            overspill_vcpu::sleep_until(at_ns);
            while overspill_vcpu::are_interrupts_masked(cpu as usize) {
                overspill_vcpu::charge(PING_POLL_NS);
            }
            if self.is_counting() {
                self.pings.borrow_mut().push(clock::now_ns() - at_ns + ROUND_TRIP_NS);
            }
            at_ns = clock::now_ns().max(at_ns + PING_PERIOD_NS);
        }
    }

    /// Returns what ping would print; none without packets.
    pub(crate) fn ping(&self) -> Option<Ping> {
        let pings = self.pings.borrow();
        (!pings.is_empty()).then(|| Ping::of(&pings))
    }

    /// Runs a node's reclaim thread (kswapd).
    pub(crate) fn reclaimer(&self, node: usize) {
        let engine = &self.nodes[node].engine;
        let mut worker = new_worker(engine);
        let over = || self.ended.get() == self.threads;
        while !over() {
            engine.balance(&mut worker, over);
        }
        worker.finish(engine);
    }
}

fn new_worker(engine: &Engine) -> Worker {
    Worker::new(engine).expect("address space for a worker")
}
