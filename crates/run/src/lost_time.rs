//! How much of its time a thread loses to faults, by what the kernel counts of it.
//!
//! Owns: the model. Of a stretch of time a thread has run, in its own code and the kernel's,
//! waited for a CPU, or slept. A fault that somebody else serves has it sleep once. What faults
//! cost is the sleep in them, from the thread's stop to its going on; the kernel's time for them;
//! what they take from the thread's own code by the caches that they empty; and the wait for a
//! CPU that follows from all that switching.
//! Invariants: a thread that had no fault has lost nothing, however long it slept. What is lost
//! and what is not are together the time in which the thread did not sleep for another reason.
//! Known errors: what one fault costs in the kernel is what it was where threads did hardly
//! anything else, and what it takes from the caches a part of that (measured:
//! docs/prediction.md). Of a thread that sleeps for other reasons and faults in the same
//! twentieth of a second the parts are estimated.
//! Not here: reading it (`stalls`).

use std::time::Duration;

/// What the kernel has counted of a thread so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counted {
    /// It ran, and waited for a CPU.
    pub(crate) run_ns: u64,
    pub(crate) delay_ns: u64,
    /// How often it was given a CPU.
    pub(crate) switches: u64,
    /// Of its ticks those in its own code, and in the kernel's.
    pub(crate) user_ticks: u64,
    pub(crate) system_ticks: u64,
    pub(crate) faults: u64,
}

impl Counted {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            run_ns: self.run_ns.saturating_sub(before.run_ns),
            delay_ns: self.delay_ns.saturating_sub(before.delay_ns),
            switches: self.switches.saturating_sub(before.switches),
            user_ticks: self.user_ticks.saturating_sub(before.user_ticks),
            system_ticks: self.system_ticks.saturating_sub(before.system_ticks),
            faults: self.faults.saturating_sub(before.faults),
        }
    }
}

/// What became of a stretch of a thread's time.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Spent {
    /// In which it did not sleep for another reason than faults.
    pub(crate) active_ns: f64,
    /// That it has lost.
    pub(crate) lost_ns: f64,
}

/// About a stretch of time in which a thread was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) time: Duration,
    /// From a fault's message to its answer, as a rule.
    pub(crate) answer_ns: f64,
    /// For so long of it the thread was stopped by us.
    pub(crate) stopped: Duration,
    /// Whether the run had no fault for long before.
    pub(crate) was_idle: bool,
}

/// Switches beside those of faults, as a part of those, up to which all sleep is in faults.
const FEW_PART: u64 = 8;
/// And so many faults teach how long the sleep in one is.
const MANY: u64 = 500;
/// A fault's sleep is longer than its answer takes by so much, and at most, if that is not known.
const SLEEP_FACTOR: f64 = 1.5;
const SLEEP_EXTRA_NS: f64 = 15_000.0;
const SLEEP_FACTOR_MOST: f64 = 4.0;
const SLEEP_EXTRA_MOST_NS: f64 = 50_000.0;
/// What a fault costs in the kernel, before anything is known of that; at least and at most.
const SYSTEM_NS: f64 = 9_000.0;
const SYSTEM_LEAST_NS: f64 = 7_000.0;
const SYSTEM_MOST_NS: f64 = 14_000.0;
/// What it takes of its thread's own code, as a part of that.
const POLLUTION_PART: f64 = 0.24;
const DEBT_MOST_NS: f64 = 50_000_000.0;
/// What is supposed of that counts as so many faults.
const SUPPOSED_FAULTS: f64 = 20_000.0;
/// A thread that runs for less than this for each fault does hardly anything else.
const HARDLY_NS: f64 = 30_000.0;

/// How the time that a thread runs is divided, by its ticks: of the last hundred or so, as a few
/// tell little.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Parts {
    user_ticks: f64,
    system_ticks: f64,
}

/// So many ticks ago counts half as much, more or less.
const REMEMBERED_TICKS: f64 = 100.0;
/// What is supposed of a thread counts as so many ticks.
const SUPPOSED_TICKS: f64 = 5.0;

impl Parts {
    /// Takes note of more ticks.
    pub(crate) fn note(&mut self, counted: &Counted) {
        let [user, system] = [counted.user_ticks, counted.system_ticks].map(|ticks| ticks as f64);
        let kept = (1.0 - (user + system) / REMEMBERED_TICKS).max(0.0);
        self.user_ticks = self.user_ticks * kept + user;
        self.system_ticks = self.system_ticks * kept + system;
    }

    /// The part that is the kernel's, where so much is supposed to be.
    fn system(self, supposed: f64) -> f64 {
        let system = self.system_ticks + SUPPOSED_TICKS * supposed;
        system / (self.user_ticks + self.system_ticks + SUPPOSED_TICKS)
    }
}

/// What was learnt about faults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// The kernel's time where there was hardly anything else, and faults then.
    system: (f64, f64),
    sleep_ns: Option<f64>,
    /// By how much faults were supposed to cost more than there was: ticks are coarse.
    debt_ns: f64,
    /// Of all stretches.
    lost_ns: f64,
    faults: u64,
}

impl Costs {
    pub(crate) fn new() -> Self {
        Self { system: (0.0, 0.0), sleep_ns: None, debt_ns: 0.0, lost_ns: 0.0, faults: 0 }
    }

    /// What all threads have lost by faults.
    pub(crate) fn lost_ns(&self) -> f64 {
        self.lost_ns
    }

    /// Faults that are part of what is known.
    pub(crate) fn faults(&self) -> u64 {
        self.faults
    }

    /// What a fault of which nothing is known has cost, if its answer took so long.
    pub(crate) fn of_one(&self, answer_ns: f64) -> f64 {
        match self.faults {
            0..MANY => answer_ns * SLEEP_FACTOR + SLEEP_EXTRA_NS + self.system_ns(),
            faults => self.lost_ns / faults as f64,
        }
    }

    fn system_ns(&self) -> f64 {
        let (ns, faults) = self.system;
        let supposed = SUPPOSED_FAULTS * SYSTEM_NS;
        ((ns + supposed) / (faults + SUPPOSED_FAULTS)).clamp(SYSTEM_LEAST_NS, SYSTEM_MOST_NS)
    }

    /// Tells what became of a stretch, and learns from it.
    pub(crate) fn spent(&mut self, counted: Counted, parts: Parts, stretch: Stretch) -> Spent {
        let Counted { run_ns, delay_ns, faults, .. } = counted;
        let [time, run, delay] =
            [stretch.time.as_nanos() as u64, run_ns, delay_ns].map(|n| n as f64);
        let all_sleep = (time - run - delay).max(0.0);
        let stopped = all_sleep.min(stretch.stopped.as_nanos() as f64);
        let sleep = all_sleep - stopped;
        if faults == 0 {
            return Spent { active_ns: (run + delay).min(time) + stopped, lost_ns: stopped };
        }
        let system = run * parts.system((faults as f64 * self.system_ns() / run.max(1.0)).min(1.0));
        if !stretch.was_idle {
            self.learn(&counted, (system, sleep));
        }
        let slept = stopped + self.slept(&counted, sleep, stretch);
        let own = self.own_ns(faults as f64, (run - system, system));
        // Who is preempted waits for a CPU as it would without faults; who wakes up does not.
        let preempted = others(&counted) as f64 / counted.switches.max(1) as f64;
        let own_delay = delay * preempted * own / run.max(1.0);
        let active_ns = (run + delay + slept).min(time.max(run));
        let lost_ns = (active_ns - own - own_delay).max(0.0);
        self.lost_ns += lost_ns;
        self.faults += faults;
        Spent { active_ns, lost_ns }
    }

    /// Of the sleep that in faults.
    fn slept(&self, counted: &Counted, sleep: f64, stretch: Stretch) -> f64 {
        let faults = counted.faults as f64;
        let answers = faults * stretch.answer_ns;
        let has_few = others(counted) * FEW_PART <= counted.faults;
        let usual = answers * SLEEP_FACTOR + faults * SLEEP_EXTRA_NS;
        let most = answers * SLEEP_FACTOR_MOST + faults * SLEEP_EXTRA_MOST_NS;
        let known = self.sleep_ns.map(|ns| ns * faults);
        sleep.min(match has_few && !stretch.was_idle {
            true => most.max(2.0 * known.unwrap_or(0.0)),
            false => known.unwrap_or(usual),
        })
    }

    /// Of the time that it ran that of its own code, and of the kernel's for it.
    fn own_ns(&mut self, faults: f64, (user, system): (f64, f64)) -> f64 {
        let own = user + system - faults * self.system_ns() * (1.0 + POLLUTION_PART) - self.debt_ns;
        self.debt_ns = (-own).clamp(0.0, DEBT_MOST_NS);
        own.max(0.0)
    }

    fn learn(&mut self, counted: &Counted, (system, sleep): (f64, f64)) {
        if counted.faults < MANY {
            return;
        }
        let faults = counted.faults as f64;
        if (counted.run_ns as f64) < faults * HARDLY_NS {
            self.system = (self.system.0 + system, self.system.1 + faults);
        }
        if others(counted) * 100 <= counted.faults {
            let ns = sleep / faults;
            self.sleep_ns = Some(self.sleep_ns.map_or(ns, |known| known + (ns - known) / 8.0));
        }
    }
}

/// Switches beside those of faults: it was preempted, or slept for another reason.
fn others(counted: &Counted) -> u64 {
    counted.switches.saturating_sub(counted.faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn stretch() -> Stretch {
        let time = Duration::from_millis(1000);
        Stretch { time, answer_ns: 20_000.0, stopped: Duration::ZERO, was_idle: false }
    }

    fn ms(ns: f64) -> i64 {
        (ns / MS as f64).round() as i64
    }

    /// As after many ticks of which so many of a hundred were in the kernel.
    fn parts(system: u64) -> Parts {
        let mut parts = Parts::default();
        let ticks =
            Counted { user_ticks: 100 - system, system_ticks: system, ..Counted::default() };
        (0..3).for_each(|_| parts.note(&ticks));
        parts
    }

    #[test]
    fn who_has_no_faults_has_lost_nothing() {
        let counted = Counted { run_ns: 300 * MS, delay_ns: 100 * MS, ..Counted::default() };
        let spent = Costs::new().spent(counted, parts(50), stretch());
        assert_eq!((ms(spent.active_ns), ms(spent.lost_ns)), (400, 0));
        // Unless it is held.
        let held = Stretch { stopped: Duration::from_millis(200), ..stretch() };
        let held = Costs::new().spent(counted, parts(50), held);
        assert_eq!((ms(held.active_ns), ms(held.lost_ns)), (600, 200));
    }

    /// 20 000 faults in a second, as a program in a tenth of its memory: some 50 ms of its own.
    #[test]
    fn all_but_its_own_time_is_lost() {
        let counted = Counted {
            run_ns: 250 * MS,
            delay_ns: 100 * MS,
            switches: 20_010,
            faults: 20_000,
            ..Counted::default()
        };
        // Before there are ticks it is supposed to be so.
        for parts in [parts(72), Parts::default()] {
            let spent = Costs::new().spent(counted, parts, stretch());
            assert_eq!(ms(spent.active_ns), 1000);
            assert!((945..985).contains(&ms(spent.lost_ns)), "{spent:?}");
        }
    }

    #[test]
    fn other_sleep_is_not_lost() {
        let counted =
            Counted { run_ns: 20 * MS, switches: 1_200, faults: 1_000, ..Counted::default() };
        let active = |costs: &mut Costs, counted, stretch| {
            ms(costs.spent(counted, parts(50), stretch).active_ns)
        };
        // 200 other switches: the answers took 20 ms, and nothing is known of the sleep.
        assert_eq!(active(&mut Costs::new(), counted, stretch()), 20 + 45);
        // A server that was idle, and answers one request.
        let (idle, once) =
            (Stretch { was_idle: true, ..stretch() }, Counted { switches: 1_001, ..counted });
        assert_eq!(active(&mut Costs::new(), once, idle), 20 + 45);
        // A fault's sleep is learnt from those that do nothing else.
        let mut costs = Costs::new();
        let busy = Counted { run_ns: 400 * MS, faults: 10_000, switches: 10_001, ..counted };
        active(&mut costs, busy, stretch());
        assert_eq!(costs.sleep_ns.map(|ns| ns as u64), Some(60_000));
        assert_eq!(active(&mut costs, counted, stretch()), 20 + 60);
    }

    #[test]
    fn what_a_fault_costs_is_learnt_of_who_does_nothing_else() {
        let mut costs = Costs::new();
        let counted = Counted { run_ns: 1000 * MS, faults: 100_000, ..Counted::default() };
        let teach = |costs: &mut Costs, system, faults| {
            let counted = Counted { faults, ..counted };
            (0..100).for_each(|_| _ = costs.spent(counted, parts(system), stretch()));
            costs.system_ns().round() as u64
        };
        assert!((7_900..8_100).contains(&teach(&mut costs, 80, 100_000)));
        // It makes calls, too.
        assert!((7_900..8_100).contains(&teach(&mut costs, 99, 20_000)));
        assert_eq!(teach(&mut Costs::new(), 1, 100_000), SYSTEM_LEAST_NS as u64);
    }
}
