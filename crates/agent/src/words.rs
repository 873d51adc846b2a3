//! What the keeper and the agent say to each other, word by word.
//!
//! Owns: the layout of the agent's memory, of its mailbox, and of the one request and the one
//! answer there are. This file is part of two programs: of the library, for the keeper, and of the
//! agent's image (`payload/main.rs`), so neither can be of another opinion.
//! Invariants: plain integers of fixed sizes, no padding, no pointers, nothing secret. The agent
//! checks what it is told, the keeper believes no answer.
//! Not here: when what is asked (`keeper`), how the mailbox gets to its place (`guest`).
//! Rejected: a message for each kind of request: one size has no length to be wrong about.

/// Bytes of a page; a machine with others has no guests.
pub const PAGE_BYTES: usize = 4096;
/// Bytes that the agent's code may have. It lies at the start of the agent's memory.
pub const CODE_BYTES: usize = 3 * PAGE_BYTES;
/// Where the [`Mailbox`] is in the agent's memory. What comes before can be executed, and not
/// written.
pub const MAILBOX_AT: usize = CODE_BYTES;
/// Bytes of the agent's memory: code, mailbox, stack.
pub const AGENT_BYTES: usize = CODE_BYTES + 3 * PAGE_BYTES;
/// Pages that can be moved to staging at a time.
pub const STAGING_PAGES: usize = 64;
/// Where the page of staging is that nothing is moved to, and that stays registered.
pub const ANCHOR_AT: usize = STAGING_PAGES * PAGE_BYTES;
/// Bytes of staging.
pub const STAGING_BYTES: usize = ANCHOR_AT + PAGE_BYTES;
/// Runs of a request.
pub const RUNS_MAX: usize = 64;

/// Bytes of an address of a socket that an agent can be given: such as the kernel chooses.
pub const ADDRESS_BYTES: usize = 16;

/// CPUs that an agent can be told to run on: one on another stays where it is.
pub const CPUS_MAX: usize = 1024;

/// A run of the guest's pages.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(not(payload), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Run {
    /// Of its first byte.
    pub address: u64,
    /// How many.
    pub pages: u32,
    /// 0, or [`PROTECTED`] and what may be done with it (as for `mprotect`). What cannot be written
    /// is made writable while it moves: the program's threads stand still. For what can be executed
    /// staging can, too, while it is there.
    pub protection: u32,
}

/// Of a run that cannot be written, or can be executed.
pub const PROTECTED: u32 = 1 << 31;
/// Of a run that can be read, written and executed.
pub const EXECUTABLE: u32 = PROTECTED | 7;

/// What became of a run.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(not(payload), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Outcome {
    /// How many were done, from the first on.
    pub pages: u32,
    /// The error that stopped it, 0 if none did.
    pub errno: i32,
}

/// A request.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(payload), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Request {
    /// One of [`kind`].
    pub kind: u32,
    /// Of [`flag`].
    pub flags: u32,
    /// The CPU on which whoever asks waits for the answer.
    pub cpu: u32,
    /// Runs that are given.
    pub count: u32,
    /// The same as a mask.
    pub cpus: [u64; CPUS_MAX / 64],
    /// The runs.
    pub runs: [Run; RUNS_MAX],
}

#[cfg(not(payload))]
impl Request {
    /// One without runs, and without what is asked in detail.
    pub fn of(kind: u32) -> Self {
        Self { kind, ..bytemuck::Zeroable::zeroed() }
    }
}

/// An answer.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(payload), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Answer {
    /// The error for which the request was given up, 0 if none.
    pub errno: i32,
    /// One of [`step`], where it was given up.
    pub step: u32,
    /// Pages that were moved and written.
    pub pages: u32,
    /// The agent's number of the userfaultfd, after [`kind::SET_UP`].
    pub userfaultfd: i32,
    /// Where staging is, after [`kind::SET_UP`].
    pub staging: u64,
    /// What became of the runs.
    pub runs: [Outcome; RUNS_MAX],
}

/// What lies between code and stack.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(payload), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Mailbox {
    /// 1 if the first task that runs here is the agent, 0 if the second is and the first ends.
    pub single: u32,
    /// 1 if the userfaultfd will be made by the system call, which takes the program's rights.
    pub keeps_rights: u32,
    /// The program's number, as the program itself sees it.
    pub program: i32,
    /// How far the agent has come, one of [`state`]. Written last.
    pub state: u32,
    /// The error that ended it.
    pub errno: i32,
    /// One of [`step`], which it ended in.
    pub step: u32,
    /// The channel: the first end is for the keeper.
    pub sockets: [i32; 2],
    /// 1 while the program has no huge pages because of the agent.
    pub huge_pages_off: u32,
    /// Bytes of `address` that count; 0 if the channel is to be made here.
    pub address_bytes: u32,
    /// The address (`struct sockaddr_un`) of who waits for the agent: the channel leads there.
    pub address: [u8; ADDRESS_BYTES],
    /// What was asked last.
    pub request: Request,
    /// What is being answered.
    pub answer: Answer,
}

/// What can be asked.
pub mod kind {
    /// With descriptors: the memory file, then what [`super::flag`] says. The userfaultfd, staging,
    /// and from now on the filter.
    pub const SET_UP: u32 = 1;
    /// Registers staging with the userfaultfd, once its features are settled.
    pub const REGISTER: u32 = 2;
    /// New huge pages of the program: none with [`super::flag::NO_HUGE_PAGES`], else as before.
    pub const HUGE_PAGES: u32 = 3;
    /// Moves runs into staging, and answers. Then writes staging to the start of the memory file,
    /// where the pages lie one after the other, empties it, and answers again.
    pub const BATCH: u32 = 4;
    /// Makes the pages of runs this address space's own, by a write fault that changes nothing.
    pub const POPULATE: u32 = 5;
    /// Ends the agent. The program stays.
    pub const LEAVE: u32 = 6;
    /// With descriptors: the bell, then the letters. Maps them into the gate that the first run
    /// says the address of, and leaves alone what its threads hold from now on.
    pub const GATE: u32 = 7;
    /// Puts back runs whose content is at the start of the memory file, one after the other, after
    /// [`super::flag::BARRIER`]. Nobody touches them before they are complete.
    pub const FILL: u32 = 8;
    /// Has runs be empty as if they had never been touched, after [`super::flag::BARRIER`].
    pub const CLEAR: u32 = 9;
}

/// Details of a request.
pub mod flag {
    /// [`super::kind::SET_UP`] brings `/dev/userfaultfd`, too.
    pub const DEVICE: u32 = 1;
    /// [`super::kind::SET_UP`] brings the userfaultfd itself, too. If it is not of the program's
    /// address space it is given up at [`super::step::USERFAULTFD`], and may be repeated with
    /// another one.
    pub const USERFAULTFD: u32 = 2;
    /// The program gets no new huge pages.
    pub const NO_HUGE_PAGES: u32 = 4;
    /// Of a [`super::Barrier`], if there is one.
    pub const BARRIER: u32 = 24;
}

/// What keeps touches of what is out away, so that they raise signals, where there is no
/// userfaultfd. Then [`kind::SET_UP`] brings the program's memory (`/proc/PID/mem`), too, staging
/// is the memory file, and a [`kind::BATCH`] is written when its first answer comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Barrier {
    /// A guard region (MADV_GUARD_INSTALL, Linux 6.13).
    Guard,
    /// Nobody may touch it (PROT_NONE), so that it is a mapping of its own.
    NoAccess,
}

impl Barrier {
    /// The bits of [`flag::BARRIER`].
    pub const fn word(barrier: Option<Self>) -> u32 {
        match barrier {
            None => 0,
            Some(Self::NoAccess) => 8,
            Some(Self::Guard) => 16,
        }
    }

    /// What the same bits of a word say.
    pub const fn of(word: u32) -> Option<Self> {
        match word & flag::BARRIER {
            8 => Some(Self::NoAccess),
            16 => Some(Self::Guard),
            _ => None,
        }
    }
}

/// How far the agent has come.
pub mod state {
    /// Not far.
    pub const STARTING: u32 = 0;
    /// The channel can be taken.
    pub const READY: u32 = 1;
    /// It has ended.
    pub const FAILED: u32 = 2;
}

/// What the agent was about to do when it failed.
pub mod step {
    /// Reading the request: a count that there is not.
    pub const WORDS: u32 = 1;
    /// Closing the program's descriptors.
    pub const DESCRIPTORS: u32 = 2;
    /// Never to get more rights.
    pub const NO_NEW_RIGHTS: u32 = 3;
    /// Dropping capabilities.
    pub const CAPABILITIES: u32 = 4;
    /// Taking hold of the program.
    pub const PROGRAM: u32 = 5;
    /// Making the channel.
    pub const CHANNEL: u32 = 6;
    /// Making the userfaultfd.
    pub const USERFAULTFD: u32 = 7;
    /// Mapping staging.
    pub const STAGING: u32 = 8;
    /// Changing whether there are huge pages.
    pub const HUGE_PAGES: u32 = 9;
    /// Limiting the calls that it can make.
    pub const FILTER: u32 = 10;
    /// Registering staging.
    pub const REGISTER: u32 = 11;
    /// Emptying staging.
    pub const EMPTY: u32 = 12;
    /// Writing to the memory file.
    pub const WRITE: u32 = 13;
    /// Saying that pages have moved.
    pub const ANSWER: u32 = 14;
    /// Protecting again what was made writable.
    pub const PROTECT: u32 = 15;
    /// Mapping what the gate and the keeper have in common.
    pub const GATE: u32 = 16;
}
