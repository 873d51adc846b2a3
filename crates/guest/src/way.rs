//! How a fault of what is out is noticed.
//!
//! Not here: what a machine must permit for each (`run`), what is done then (`keeper`).

use overspill_agent::Barrier;

/// One of the ways, from a user's choice to what an agent is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By the kernel, whoever touches it: a userfaultfd with messages of forks.
    Faults,
    /// By the kernel where the program's own code touches it. What its calls touch is brought in
    /// before they are made, which its gate sees to.
    Calls,
    /// By the program's own code, as a signal, of which its gate tells.
    Signals(Barrier),
}
