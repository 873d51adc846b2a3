//! Interrupts: other CPUs' and those of devices.
//!
//! Owns: whose time an interrupt takes, and when it has to wait. Invariants: where one CPU is
//! interrupted by all devices, one interrupt at a time is dealt with there.
//! Not here: what an interrupt does.

use crate::core::{Core, with, with_task};
use crate::task::{cpu, now_ns};

/// How often an interrupt looks whether another one has ended.
const MASK_POLL_NS: u64 = 500;

/// Interrupts `cpu` for `ns` of work: its task loses the time. Interrupting oneself does nothing.
pub fn interrupt(cpu: usize, ns: u64) {
    with_task(|core| {
        if cpu as u32 != core.cpu.get() {
            core.cpus.borrow_mut()[cpu].stolen_ns += ns;
        }
    });
}

/// The running task becomes an interrupt until what this returns is dropped: no other is taken on
/// its CPU. Where the machine has one CPU for all interrupts of devices it moves there, when that
/// has ended the one before, and the CPU's own task loses the time.
pub fn enter_interrupt() -> Interrupt {
    let home = cpu() as u32;
    with_task(Core::enter_interrupt);
    Interrupt { home, since_ns: now_ns() }
}

/// True if `cpu` takes no interrupts now.
pub fn are_interrupts_masked(cpu: usize) -> bool {
    with(|core| {
        core.point();
        core.cpus.borrow()[cpu].masked > 0
    })
}

/// True if the CPU that devices interrupt is busy with that, or takes none just now: what has
/// ended on a device is dealt with later. Never where each interrupts the one that asked.
pub fn must_devices_wait() -> bool {
    let cpu = with(|core| core.shape.get().interrupt_cpu);
    cpu.is_some_and(|cpu| are_interrupts_masked(cpu as usize))
}

/// See [`enter_interrupt`].
#[must_use = "it ends at once"]
pub struct Interrupt {
    home: u32,
    since_ns: u64,
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        with_task(|core| core.leave_interrupt(self.home, core.now_ns() - self.since_ns));
    }
}

impl Core {
    /// Masks the interrupts of the running task's CPU once more. Only where somebody looks.
    pub(crate) fn mask(&self) {
        if self.shape.get().interrupt_cpu.is_some() {
            self.cpus.borrow_mut()[self.cpu.get() as usize].masked += 1;
        }
    }

    /// Once less.
    pub(crate) fn unmask(&self) {
        if self.shape.get().interrupt_cpu.is_some() {
            self.cpus.borrow_mut()[self.cpu.get() as usize].masked -= 1;
        }
    }

    fn enter_interrupt(&self) {
        let Some(target) = self.shape.get().interrupt_cpu else { return };
        self.point();
        while self.cpus.borrow()[target as usize].masked > 0 {
            self.charge(MASK_POLL_NS);
            self.point();
        }
        self.move_to(target, 1);
        self.mask();
    }

    fn leave_interrupt(&self, home: u32, took_ns: u64) {
        let Some(target) = self.shape.get().interrupt_cpu else { return };
        self.point();
        self.unmask();
        if home != target {
            self.cpus.borrow_mut()[target as usize].stolen_ns += took_ns;
        }
        self.move_to(home, -1);
    }

    /// Goes on as if on `cpu`; counts as a spinning lock held while it is elsewhere, so that it is
    /// not put to sleep there.
    fn move_to(&self, cpu: u32, locks: i32) {
        self.cpu.set(cpu);
        let mut tasks = self.tasks.borrow_mut();
        let task = &mut tasks[self.current.get() as usize];
        task.cpu = cpu;
        task.spin_locks = task.spin_locks.wrapping_add_signed(locks);
    }
}
