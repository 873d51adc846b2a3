//! The ends of the agent.
//!
//! Owns: leaving a program that goes on, and ending one that has lost its keeper.
//! Invariants: the agent holds the userfaultfd until the program is no more: if it were the last
//! to hold it, missing pages would read as zeros from then on. A program that has changed its user
//! cannot be killed by an agent without rights; then its memory is taken from under it.
//! Not here: what has to be undone before a program goes on ([`crate::work`]).

use crate::calls::{self, ESRCH};
use crate::words::{AGENT_BYTES, MAILBOX_AT};

/// Seconds between two looks at a program that is being ended.
const LOOK_S: u64 = 1;
/// Where address spaces end, for those that there are; the first that the kernel takes is right.
const TOPS: [usize; 5] = [1 << 48, 1 << 47, (1 << 47) - 4096, 1 << 42, 1 << 39];

/// Exits, and leaves only the code mapped.
pub fn leave_quietly(base: usize) -> ! {
    calls::unmap_and_exit(base + MAILBOX_AT, AGENT_BYTES - MAILBOX_AT)
}

/// Ends the program, waits until it has ended, and exits.
pub fn end_program(base: usize, program: i32) -> ! {
    let mut has_memory = true;
    loop {
        match calls::kill(program) {
            Ok(_) => {}
            Err(ESRCH) => calls::exit(),
            Err(_) if has_memory => {
                has_memory = false;
                take_memory(base);
            }
            Err(_) => {}
        }
        if let Ok(true) = calls::wait_readable(program, LOOK_S) {
            calls::exit();
        }
    }
}

/// Unmaps all but the agent: the program's next instruction is its last.
fn take_memory(base: usize) {
    let end = base + AGENT_BYTES;
    let _ = calls::unmap(0, base);
    for top in TOPS {
        if top > end && calls::unmap(end, top - end).is_ok() {
            return;
        }
    }
}
