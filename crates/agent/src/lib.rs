//! The agent: code that lives in guests.
//!
//! Owns: its image, which [`CODE`] has as bytes, and the words that it exchanges with the keeper.
//! The image is position independent and complete: no libc, no thread-local storage, no allocator,
//! no data that is written. `build.rs` compiles it from `payload/` and refuses what is not so.
//! Invariants: it executes from any page on; who begins at [`ENTRY`] finds all it needs in its
//! mailbox.
//! Not here: how code and mailbox get into a guest, and what it is asked (`guest`, `keeper`).
//! Rejected: C, which would need a second compiler for each architecture; a thread of the program,
//! which the program can see, and which shares its descriptors and its signals.

pub mod gate;
mod words;

pub use words::*;

/// The image. It is written to the start of the agent's memory, and executed there.
pub const CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.bin"));

/// The gate's image, which is written to the start of the gate's memory; empty on a processor for
/// which there is none.
#[cfg(target_arch = "x86_64")]
pub const GATE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gate.bin"));
/// The gate's image: there is none for this processor.
#[cfg(not(target_arch = "x86_64"))]
pub const GATE: &[u8] = &[];

/// Where a new task begins, the clone of which has its stack [`AGENT_BYTES`] from the start.
pub const ENTRY: usize = 0;

/// Says in words what the agent was about to do, for [`step`].
pub fn step_name(step: u32) -> &'static str {
    match step {
        step::WORDS => "reading what it was asked",
        step::DESCRIPTORS => "closing the program's descriptors",
        step::NO_NEW_RIGHTS => "giving up new rights",
        step::CAPABILITIES => "dropping its capabilities",
        step::PROGRAM => "opening a pidfd of its program",
        step::CHANNEL => "making its channel",
        step::USERFAULTFD => "making the userfaultfd",
        step::STAGING => "mapping staging",
        step::HUGE_PAGES => "setting whether there are huge pages",
        step::FILTER => "limiting its system calls",
        step::REGISTER => "registering staging",
        step::EMPTY => "emptying staging",
        step::WRITE => "writing to the memory file",
        step::ANSWER => "saying that pages have moved",
        step::PROTECT => "protecting memory as it was",
        step::GATE => "mapping what the gate shares with the keeper",
        _ => "something that it does not name",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One request is one packet on a socket, mailbox and stack are where the image has them.
    #[test]
    fn words_fit_into_their_page() {
        assert_eq!(size_of::<Request>(), 16 + CPUS_MAX / 8 + 64 * 16);
        assert_eq!(size_of::<Answer>(), 24 + 64 * 8);
        assert!(size_of::<Mailbox>() <= PAGE_BYTES);
    }

    #[test]
    fn the_image_fits() {
        assert!((1..=CODE_BYTES).contains(&CODE.len()), "{}", CODE.len());
    }

    #[test]
    fn every_step_has_a_name() {
        let names: std::collections::BTreeSet<_> = (1..=16).map(step_name).collect();
        assert_eq!(names.len(), 16);
        assert!(!names.contains(step_name(17)));
    }
}
