//! The agent's image: starts, then does what it is asked until its channel ends.
//!
//! Owns: the life of the agent. It starts in a program's thread by a clone that shares the address
//! space and nothing else ([`start`]), gives up all it does not need, makes its channel, waits for
//! its first request and lives from then on by requests ([`work`]).
//! Invariants: nothing of the program is written, but pages that a request names are moved away
//! or made its own. No panic can happen: it would not link.
//! Once set up, a channel that ends ends the program ([`end`]): without a keeper its missing pages
//! would be zeros.
//! Not here: what is asked, and when: the keeper decides.
#![no_std]
#![no_main]
#![no_builtins]

mod calls;
mod end;
mod filter;
#[path = "../src/gate.rs"]
#[expect(dead_code, reason = "most words are the gate's")]
mod gate;
mod held;
mod messages;
mod raw;
mod start;
mod touches;
#[path = "../src/words.rs"]
#[expect(dead_code, reason = "some words are the keeper's alone")]
mod words;
mod work;

use calls::Errno;

/// A request that was given up: where, and for which error.
pub struct Failed {
    step: u32,
    errno: Errno,
}

/// Says where a call belongs whose error is passed on.
trait At<T> {
    fn at(self, step: u32) -> Result<T, Failed>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, step: u32) -> Result<T, Failed> {
        self.map_err(|errno| Failed { step, errno })
    }
}

unsafe extern "C" {
    /// There is none: a panic that can happen does not link.
    safe fn the_agent_must_not_panic() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    the_agent_must_not_panic()
}
