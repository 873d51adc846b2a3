//! TLB shootdowns of unmapped pages on other CPUs.
//!
//! Owns: for each CPU, which CPUs it has yet to interrupt.
//! Invariants: as in Linux, there is one round of interrupts for all pages that a CPU has unmapped
//! since the last, at the latest before one of them is written to a device.
//! Not here: which CPUs run a process (`space`).

use std::sync::Mutex;

/// Pending shootdowns.
#[derive(Debug)]
pub(crate) struct Shootdown {
    /// For each CPU, those it must interrupt.
    pending: Vec<Mutex<Vec<usize>>>,
}

impl Shootdown {
    pub(crate) fn new(cpus: usize) -> Self {
        Self { pending: (0..=cpus).map(|_| Mutex::new(Vec::new())).collect() }
    }

    fn mine(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.pending[overspill_vcpu::cpu()].lock().expect("nobody panics with it")
    }

    /// Notes that a page of a process on `cpus` was unmapped.
    pub(crate) fn add(&self, cpus: &[usize]) {
        let me = overspill_vcpu::cpu();
        let mut pending = self.mine();
        for &cpu in cpus {
            if cpu != me && !pending.contains(&cpu) {
                pending.push(cpu);
            }
        }
    }

    /// Sends the pending interrupts.
    pub(crate) fn flush(&self) {
        let told = std::mem::take(&mut *self.mine());
        if told.is_empty() {
            return;
        }
        let each = told.len() as u64;
        overspill_vcpu::charge_by(|costs| costs.shootdown_ns + each * costs.shootdown_each_ns);
        let costs = overspill_vcpu::current_costs();
        told.iter().for_each(|&cpu| overspill_vcpu::interrupt(cpu, costs.interrupt_ns));
    }
}
