//! The real kernel, with a fault at one call.
//!
//! Owns: counting calls, and the n-th of them: it fails, or the process is killed at it.
//! Invariants: all other calls are the kernel's.

use overspill_guest::{Change, Kernel, Registers, System, Until};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::cell::Cell;
use std::time::Duration;

type Result<T> = std::result::Result<T, Errno>;

/// What happens at the call.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It fails, and nothing is done.
    Fails(Errno),
    /// The process is killed, and then it is made.
    Vanishes(Pid),
}

/// The kernel with a fault.
pub struct Twin {
    kernel: Kernel,
    fault: Fault,
    /// Calls until the fault.
    left: Cell<usize>,
}

impl Twin {
    /// A fault at call number `at`, from 1 on.
    pub fn new(fault: Fault, at: usize) -> Self {
        Self { kernel: Kernel::new(), fault, left: Cell::new(at) }
    }

    /// Returns true if the fault has happened.
    pub fn has_failed(&self) -> bool {
        self.left.get() == 0
    }

    fn call<T>(&self, call: impl FnOnce(&Kernel) -> Result<T>) -> Result<T> {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        match self.fault {
            Fault::Fails(errno) if left == 1 => return Err(errno),
            Fault::Vanishes(pid) if left == 1 => kill_process(pid, Signal::KILL).unwrap(),
            _ => {}
        }
        call(&self.kernel)
    }
}

impl System for Twin {
    fn seize(&self, task: Pid) -> Result<()> {
        self.call(|kernel| kernel.seize(task))
    }
    fn interrupt(&self, task: Pid) -> Result<()> {
        self.call(|kernel| kernel.interrupt(task))
    }
    fn set_options(&self, task: Pid, options: u32) -> Result<()> {
        self.call(|kernel| kernel.set_options(task, options))
    }
    fn resume(&self, task: Pid, until: Until, signal: i32) -> Result<()> {
        self.call(|kernel| kernel.resume(task, until, signal))
    }
    fn detach(&self, task: Pid, signal: i32) -> Result<()> {
        self.call(|kernel| kernel.detach(task, signal))
    }
    /// A look at a task that runs does not count: how many there are depends on the machine.
    fn wait(&self, task: Pid) -> Result<Option<Change>> {
        match self.left.get() {
            1 => self.call(|kernel| kernel.wait(task)),
            left => {
                let change = self.kernel.wait(task)?;
                self.left.set(left.saturating_sub(usize::from(change.is_some())));
                Ok(change)
            }
        }
    }
    fn event_message(&self, task: Pid) -> Result<u64> {
        self.call(|kernel| kernel.event_message(task))
    }
    fn registers(&self, task: Pid) -> Result<Registers> {
        self.call(|kernel| kernel.registers(task))
    }
    fn set_registers(&self, task: Pid, registers: &Registers) -> Result<()> {
        self.call(|kernel| kernel.set_registers(task, registers))
    }
    fn signal_mask(&self, task: Pid) -> Result<u64> {
        self.call(|kernel| kernel.signal_mask(task))
    }
    fn set_signal_mask(&self, task: Pid, mask: u64) -> Result<()> {
        self.call(|kernel| kernel.set_signal_mask(task, mask))
    }
    fn rseq(&self, task: Pid) -> Result<u64> {
        self.call(|kernel| kernel.rseq(task))
    }
    fn robust_list(&self, task: Pid) -> Result<u64> {
        self.call(|kernel| kernel.robust_list(task))
    }
    fn catches_calls(&self, task: Pid) -> Result<bool> {
        self.call(|kernel| kernel.catches_calls(task))
    }
    fn tasks(&self, pid: Pid) -> Result<Vec<Pid>> {
        self.call(|kernel| kernel.tasks(pid))
    }
    fn descriptors(&self, pid: Pid) -> Result<Vec<String>> {
        self.call(|kernel| kernel.descriptors(pid))
    }
    fn read_file(&self, path: &str) -> Result<String> {
        self.call(|kernel| kernel.read_file(path))
    }
    fn read_link(&self, path: &str) -> Result<String> {
        self.call(|kernel| kernel.read_link(path))
    }
    fn open(&self, path: &str, writes: bool) -> Result<OwnedFd> {
        self.call(|kernel| kernel.open(path, writes))
    }
    fn read_memory(&self, memory: BorrowedFd<'_>, address: u64, to: &mut [u8]) -> Result<()> {
        self.call(|kernel| kernel.read_memory(memory, address, to))
    }
    fn write_memory(&self, memory: BorrowedFd<'_>, address: u64, from: &[u8]) -> Result<()> {
        self.call(|kernel| kernel.write_memory(memory, address, from))
    }
    fn open_process(&self, pid: Pid) -> Result<OwnedFd> {
        self.call(|kernel| kernel.open_process(pid))
    }
    fn take_descriptor(&self, process: BorrowedFd<'_>, number: i32) -> Result<OwnedFd> {
        self.call(|kernel| kernel.take_descriptor(process, number))
    }
    fn address(&self, socket: BorrowedFd<'_>) -> Result<Vec<u8>> {
        self.call(|kernel| kernel.address(socket))
    }
    fn accept(&self, listener: BorrowedFd<'_>) -> Result<(OwnedFd, Option<Pid>)> {
        self.call(|kernel| kernel.accept(listener))
    }
    fn kill(&self, pid: Pid) -> Result<()> {
        self.call(|kernel| kernel.kill(pid))
    }
    fn urge(&self, task: Pid) -> Result<()> {
        self.call(|kernel| kernel.urge(task))
    }
    fn readable(&self, descriptor: BorrowedFd<'_>, wait: Duration) -> Result<bool> {
        self.call(|kernel| kernel.readable(descriptor, wait))
    }
    fn send(&self, socket: BorrowedFd<'_>, packet: &[u8], with: &[BorrowedFd<'_>]) -> Result<()> {
        self.call(|kernel| kernel.send(socket, packet, with))
    }
    fn receive(&self, socket: BorrowedFd<'_>, packet: &mut [u8]) -> Result<usize> {
        self.call(|kernel| kernel.receive(socket, packet))
    }
}
