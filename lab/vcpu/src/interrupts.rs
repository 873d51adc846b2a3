//! Interrupts from other CPUs and from devices.
//!
//! Owns: whose time an interrupt takes, and when it has to wait.
//! Invariants: if all devices interrupt one CPU, it handles one interrupt at a time.
//! Not here: what an interrupt does.

use crate::core::{Core, with, with_task};
use crate::task::{cpu, now_ns};

/// How often an interrupt checks whether another one has ended.
const MASK_POLL_NS: u64 = 500;

/// Interrupts `cpu` for `ns` of work: its task loses the time. Interrupting one's own CPU does
/// nothing.
pub fn interrupt(cpu: usize, ns: u64) {
    with_task(|core| {
        if cpu as u32 != core.cpu.get() {
            core.cpus.borrow_mut()[cpu].stolen_ns += ns;
        }
    });
}

/// Turns the running task into an interrupt until the guard is dropped: no other is taken on its
/// CPU. If one CPU handles all interrupts of devices, the task moves there when the previous
/// interrupt has ended, and that CPU's own task loses the time.
pub fn enter_interrupt() -> Interrupt {
    let home = cpu() as u32;
    with_task(Core::enter_interrupt);
    Interrupt { home, since_ns: now_ns() }
}

/// Returns true if `cpu` takes no interrupts now.
pub fn are_interrupts_masked(cpu: usize) -> bool {
    with(|core| {
        core.point();
        core.cpus.borrow()[cpu].masked > 0
    })
}

/// Returns true if the CPU that devices interrupt is handling one or has masked them: completions
/// are then handled later. Never true if each device interrupts the CPU that submitted the request.
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
    /// Masks the interrupts of the running task's CPU once more, if they matter.
    pub(crate) fn mask(&self) {
        if self.shape.get().interrupt_cpu.is_some() {
            self.cpus.borrow_mut()[self.cpu.get() as usize].masked += 1;
        }
    }

    /// Unmasks them once.
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

    /// Continues as if on `cpu`; while it is elsewhere it counts as holding a spinning lock, so
    /// that it is not put to sleep there.
    fn move_to(&self, cpu: u32, locks: i32) {
        self.cpu.set(cpu);
        let mut tasks = self.tasks.borrow_mut();
        let task = &mut tasks[self.current.get() as usize];
        task.cpu = cpu;
        task.spin_locks = task.spin_locks.wrapping_add_signed(locks);
    }
}
