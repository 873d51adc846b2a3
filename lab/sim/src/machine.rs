//! A machine, its processes, and one run of them.
//!
//! Owns: the description of a run, checking it, and running it.
//! Not here: which descriptions are of interest (`experiments`, `sweep`).

use crate::device::DeviceModel;
use crate::error::{SimError, within};
use crate::network::{Network, Servers};
use crate::node::{Node, NodePlan};
use crate::sample::Sample;
use crate::shootdown::Shootdown;
use crate::workload::{Run, Thread};
use overspill_base::clock::Cpus;
use overspill_engine::Tuning;
use overspill_vcpu::{Costs, Machine, Schedule, Shape};
use serde::Serialize;
use std::rc::Rc;
use std::sync::Arc;

/// A machine and what runs on it.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Number of CPUs.
    pub cpus: usize,
    /// Number of sockets.
    pub sockets: usize,
    /// Memory nodes: one for each socket, or one.
    pub nodes: usize,
    /// Threads, spread evenly over the nodes, each on its own CPU.
    pub threads: usize,
    /// True if every thread is its own process; otherwise the threads of a node are one process.
    pub processes: bool,
    /// Frames of a node.
    pub frames: usize,
    /// Pages that all threads of a node touch, as a multiple of its memory.
    pub working_set: f64,
    /// Devices of a node.
    pub devices: usize,
    /// Slots of each device.
    pub device_slots: u32,
    /// The kind of device.
    pub device: DeviceModel,
    /// Where the devices are, if not in the machine. Every node is a machine of its own then, with
    /// [`MACHINE_CPUS`] CPUs and one thread.
    pub network: Option<Network>,
    /// Share of the slots that others use, at random places.
    pub foreign: f64,
    /// True if devices grow as they fill, like a file: a large one is mostly untouched.
    pub sparse: bool,
    /// What the threads do.
    pub pattern: Pattern,
    /// CPU that receives the interrupts of devices and of a network card, whose packets are timed;
    /// none if there are no packets.
    pub interrupt_cpu: Option<u32>,
    /// Virtual seconds before counting begins.
    pub settle_s: f64,
    /// Virtual seconds that are counted.
    pub seconds: f64,
}

/// Which pages are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Any page of the process, a fifth of them written.
    Random,
    /// Every page once, in order, written: memory fills and stays full.
    Fresh,
}

/// CPUs of a machine on a network: one for its thread, one for reclaim.
pub const MACHINE_CPUS: usize = 2;
/// Most machines on a network.
const MACHINES_MAX: usize = 1024;
/// Most servers.
const SERVERS_MAX: usize = 1024;
/// Most CPUs of a machine.
const CPUS_MAX: usize = 1024;
/// Most slots of an area: slot numbers have 32 bits.
const SLOTS_MAX: u64 = (1 << 32) - (1 << 14);

impl Plan {
    /// Checks that there can be such a machine.
    ///
    /// # Errors
    /// [`SimError::OutOfRange`] for the first invalid parameter.
    pub fn check(&self) -> Result<(), SimError> {
        match &self.network {
            None => self.check_cpus()?,
            Some(network) => self.check_machines(network)?,
        }
        within("devices", self.devices, 1..=32)?;
        within("frames", self.frames, 256..=1 << 24)?;
        within("working set", self.working_set, 0.1..=64.0)?;
        within("fragmentation", self.foreign, 0.0..=0.95)?;
        within("seconds", self.seconds, 0.001..=3600.0)?;
        let cluster = 512;
        within("size (slots)", u64::from(self.device_slots), cluster..=SLOTS_MAX)?;
        within("size (free slots)", self.free_slots(), self.slots_needed()..=u64::MAX)
    }

    fn check_cpus(&self) -> Result<(), SimError> {
        within("cpus", self.cpus, 1..=CPUS_MAX)?;
        within("sockets", self.sockets, 1..=self.cpus.min(16))?;
        within("nodes", self.nodes, 1..=self.sockets)?;
        within("threads", self.threads, self.nodes..=self.cpus)
    }

    fn check_machines(&self, network: &Network) -> Result<(), SimError> {
        within("clients", self.nodes, 1..=MACHINES_MAX)?;
        within("servers", network.servers, 1..=SERVERS_MAX)?;
        within("deaths", network.deaths, 0..=network.servers / 2)?;
        let cpus = self.nodes * MACHINE_CPUS;
        within("cpus", self.cpus, cpus..=cpus)?;
        within("sockets", self.sockets, self.nodes..=self.nodes)?;
        within("threads", self.threads, self.nodes..=self.nodes)
    }

    /// The CPUs that a node's engine knows.
    fn cpus_of_node(&self) -> Cpus {
        match self.network {
            None => Cpus { count: self.cpus, current: overspill_vcpu::cpu },
            Some(_) => {
                Cpus { count: MACHINE_CPUS, current: || overspill_vcpu::cpu() % MACHINE_CPUS }
            }
        }
    }

    /// Slots of a node's devices that others do not use.
    fn free_slots(&self) -> u64 {
        let slots = self.devices as u64 * u64::from(self.device_slots);
        (slots as f64 * (1.0 - self.foreign)) as u64
    }

    /// Returns the slots for a node's pages and for its CPUs' caches.
    fn slots_needed(&self) -> u64 {
        (self.frames as f64 * self.working_set) as u64 + 128 * self.cpus_of_node().count as u64
    }

    fn shape(&self) -> Shape {
        Shape { cpus: self.cpus, sockets: self.sockets, interrupt_cpu: self.interrupt_cpu }
    }

    /// Returns the CPU of a thread. Threads are dealt out to the sockets in turn, so that every
    /// node's memory is used from all of them. The last CPUs of a socket are left to reclaim
    /// threads, if there are enough.
    fn cpu(&self, number: usize) -> usize {
        let (socket, place) = (number % self.sockets, number / self.sockets);
        let of_socket = self.shape().socket_cpus();
        let each = self.threads.div_ceil(self.sockets);
        let places = of_socket.saturating_sub(self.nodes.div_ceil(self.sockets)).max(each);
        (socket * of_socket + place * places / each).min(self.cpus - 1)
    }

    /// Returns the CPU of a node's reclaim thread.
    fn reclaim_cpu(&self, node: usize) -> usize {
        ((node + 1) * self.cpus / self.nodes).min(self.cpus) - 1
    }

    /// Returns the threads of a node, by their number in the machine.
    fn threads_on(&self, node: usize) -> impl Iterator<Item = usize> + use<> {
        let nodes = self.nodes;
        let dealt = if self.network.is_some() { 1 } else { self.sockets };
        (0..self.threads).filter(move |number| number / dealt % nodes == node)
    }

    fn node_plan(&self, node: usize, tuning: Tuning, servers: Option<&Arc<Servers>>) -> NodePlan {
        let cpus: Vec<usize> = self.threads_on(node).map(|number| self.cpu(number)).collect();
        let processes =
            if self.processes { cpus.iter().map(|&cpu| vec![cpu]).collect() } else { vec![cpus] };
        let pages = (self.frames as f64 * self.working_set) as usize;
        NodePlan {
            cpus: self.cpus_of_node(),
            frames: self.frames,
            process_pages: pages / processes.len(),
            processes,
            device: self.device,
            devices: self.devices,
            device_slots: self.device_slots,
            foreign: self.foreign,
            sparse: self.sparse,
            tuning,
            servers: servers.map(|servers| (servers.clone(), node)),
        }
    }

    fn threads_of(&self, node: usize, plan: &NodePlan) -> Vec<Thread> {
        let count = self.threads_on(node).count();
        let pages = plan.process_pages as u32;
        let thread = |(thread, number): (usize, usize)| {
            let process = if self.processes { thread as u32 } else { 0 };
            let all = process * pages..(process + 1) * pages;
            let part = |n: usize| all.start + (all.len() * n / count) as u32;
            let own = part(thread)..part(thread + 1);
            let part = if self.processes { all.clone() } else { own };
            Thread { number, node, pages: all, part }
        };
        self.threads_on(node).enumerate().map(thread).collect()
    }

    /// Runs the workload on engines of `tuning`.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    ///
    /// # Panics
    /// If a page or a counter is wrong.
    pub fn run(
        &self,
        tuning: Tuning,
        costs: &'static Costs,
        seed: u64,
    ) -> Result<Sample, SimError> {
        self.check()?;
        let mut machine = Machine::new(self.shape(), costs, Schedule::Clocks);
        let shootdown = Arc::new(Shootdown::new(self.cpus));
        let servers = self.network.map(|network| Arc::new(Servers::new(network)));
        let plan = |n| self.node_plan(n, tuning, servers.as_ref());
        let plans: Vec<NodePlan> = (0..self.nodes).map(plan).collect();
        let nodes = plans.iter().map(|plan| Node::new(plan, &shootdown, seed)).collect();
        let run = Run::new(nodes, servers, self, seed);
        for (node, plan) in plans.iter().enumerate() {
            self.spawn_node(&mut machine, &run, node, plan);
        }
        if let Some(cpu) = self.interrupt_cpu {
            // The wire: a task outside the machine's CPUs.
            let run = run.clone();
            machine.spawn("packets", self.cpus, move || run.packets(cpu));
        }
        machine.run();
        run.nodes.iter().for_each(Node::check);
        let (first, last) = run.readings();
        Ok(Sample::between(&first, &last, &run.latencies.borrow(), run.ping()))
    }

    fn spawn_node(&self, machine: &mut Machine, run: &Rc<Run>, node: usize, plan: &NodePlan) {
        for thread in self.threads_of(node, plan) {
            let run = run.clone();
            let name = format!("thread {}", thread.number);
            machine.spawn(name, self.cpu(thread.number), move || run.thread(&thread));
        }
        let run = run.clone();
        machine
            .spawn(format!("reclaim {node}"), self.reclaim_cpu(node), move || run.reclaimer(node));
    }
}
