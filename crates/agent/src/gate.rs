//! The gate's memory, place by place.
//!
//! Owns: the layout of what the gate has in a guest. This file is part of two programs, as
//! `words.rs` is.
//! Invariants: a stub and its [`Return`] have the same number and the same distance, so that all
//! stubs are alike. A thread's stack for signals is its slot: whoever runs there finds the rest of
//! what is the thread's by its stack pointer.
//! Not here: what the gate does (`gate/`), how it gets into a guest (`guest`).

use crate::words::PAGE_BYTES;

/// Bytes that the gate's code may have. It lies at the start of the gate's memory.
pub const GATE_CODE_BYTES: usize = 8 * PAGE_BYTES;
/// Threads that a process can have while its gate is shut.
pub const THREADS_MAX: usize = 4096;
/// Where the door is: a call that is caught, by which a thread comes back from its stub.
pub const DOOR_AT: usize = 0;
/// From here on calls are not caught, up to [`RETURNS_AT`].
pub const PASSES_AT: usize = 16;
/// Where the handler of all signals begins.
pub const HANDLER_AT: usize = 16;
/// Where the code is to which a handler returns.
pub const RESTORER_AT: usize = 32;
/// Where the stub is of which all others are copies.
pub const STUB_AT: usize = 64;
/// Bytes of a stub.
pub const STUB_BYTES: usize = 128;
/// In a stub, where the one begins that comes back by the door.
pub const THIRD_AT: usize = 32;
/// In a stub, where the one begins that gives all arguments back.
pub const SECOND_AT: usize = 64;
/// Where the stubs are, a page of them at first.
pub const STUBS_AT: usize = GATE_CODE_BYTES;
/// Stubs of a page.
pub const STUBS_OF_PAGE: usize = PAGE_BYTES / STUB_BYTES;
/// Where the [`Return`]s are. What comes before can be executed, and makes system calls; what
/// follows can be written.
pub const RETURNS_AT: usize = STUBS_AT + THREADS_MAX * STUB_BYTES;
/// Where [`Globals`] are.
pub const GLOBALS_AT: usize = RETURNS_AT + THREADS_MAX * STUB_BYTES;
/// Where the bell is: a page that all guests of a keeper have.
pub const BELL_AT: usize = GLOBALS_AT + 4 * PAGE_BYTES;
/// Where the letters are: pages of this guest, and of children that have none of their own yet.
pub const LETTERS_AT: usize = BELL_AT + PAGE_BYTES;
/// Bytes of them: the guest's own page comes first.
pub const LETTERS_BYTES: usize = LETTER_PAGES * PAGE_BYTES;
/// How many pages those are.
pub const LETTER_PAGES: usize = 256;
/// Where the slots are.
pub const SLOTS_AT: usize = (LETTERS_AT + LETTERS_BYTES).next_multiple_of(SLOT_BYTES);
/// Bytes of a slot, and what it is aligned to.
pub const SLOT_BYTES: usize = 1 << 15;
/// Where in a slot its [`Slot`] is. What comes before is the stack.
pub const SLOT_AT: usize = SLOT_BYTES - PAGE_BYTES;
/// Bytes of the gate's memory. It is aligned as a slot is.
pub const GATE_BYTES: usize = SLOTS_AT + THREADS_MAX * SLOT_BYTES;
/// Signals, with one that there is not.
pub const SIGNALS: usize = 65;
/// Ranges that a call can hold.
pub const HOLDS_MAX: usize = 16;
/// Vectors of a part of a transfer.
pub const VECTORS_MAX: usize = 16;
/// Ranges that the kernel touches without a call.
pub const PINS: usize = 4;

/// What a signal does, as the kernel's `struct sigaction` has it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(not(payload), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Action {
    /// 0 for the default, 1 to ignore it.
    pub handler: u64,
    /// SA_SIGINFO and others.
    pub flags: u64,
    /// To where the handler returns.
    pub restorer: u64,
    /// What is blocked meanwhile.
    pub mask: u64,
}

/// Addresses from one on, and before another.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(not(payload), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Span {
    /// The first.
    pub start: u64,
    /// The one after the last.
    pub end: u64,
}

/// What a stub reads and writes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(payload), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Return {
    /// Where the program goes on.
    pub to: u64,
    /// Not 0 while the thread's holds count.
    pub held: u64,
    /// The program's arguments, where the call has others.
    pub arguments: [u64; 6],
    /// Where the door is.
    pub door: u64,
    /// Nothing.
    pub unused: [u64; 7],
}

/// What is a thread's.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(payload), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Slot {
    /// The thread's number, 0 of none, [`CLAIMED`] while it is being made. Others read it.
    pub task: u32,
    /// 1 if it is of a process that shares the memory, but not what signals do.
    pub is_foreign: u32,
    /// Signals that came and are to come again.
    pub pending: u64,
    /// What it holds. Others read it.
    pub holds: [Span; HOLDS_MAX],
    /// What the kernel touches at its end, or whenever it runs. Others read it.
    pub pins: [Span; PINS],
    /// Signals that the program believes to be blocked, and that are not.
    pub believed: u64,
    /// The program's stack for signals: where, how large (0 if there is none), and its flags.
    pub stack: u64,
    /// Bytes.
    pub stack_bytes: u64,
    /// Of `sigaltstack`.
    pub stack_flags: u64,
    /// Where the table is of what signals do.
    pub actions: u64,
    /// 1 if it waits with a mask.
    pub has_wait: u64,
    /// The mask with which it waits.
    pub wait_mask: u64,
    /// The one that the kernel has for that.
    pub kernel_mask: u64,
    /// What the letter is about that it waits for, one of [`letter`]; 0 if it waits for none.
    pub asks: u64,
    /// The call for which it waits until its gate is open; 0 if it does not, or that call and 1.
    pub redo: u64,
    /// A transfer that is made in parts: the call's number, all its bytes, those of the parts that
    /// were made, those of the part that is being made, and when more parts follow.
    pub transfer_number: u64,
    /// See there.
    pub transfer_bytes: u64,
    /// See there.
    pub transfer_done: u64,
    /// See there.
    pub transfer_part: u64,
    /// See there.
    pub transfer_goes_on: u64,
    /// The vectors of the part.
    pub vectors: [[u64; 2]; VECTORS_MAX],
    /// What pselect6 takes: where the mask is, and its size.
    pub select: [u64; 2],
    /// The table of a process that shares the memory alone.
    pub own_actions: [Action; SIGNALS],
}

/// [`Slot::task`] of one that is being made.
pub const CLAIMED: u32 = u32::MAX;

/// What is the process's.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(payload), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Globals {
    /// The thread that changes what signals do, 0 if none does.
    pub lock: u32,
    /// Slots that were ever used, from the first on.
    pub slots: u32,
    /// Pages of stubs that are there.
    pub stub_pages: u32,
    /// The thread that makes more of them.
    pub stub_lock: u32,
    /// Odd while the agent moves pages. It is written by that, and read by the gate.
    pub moving: u32,
    /// Which page of letters is the process's, from 1 on; 0 if it writes none.
    pub letters: u32,
    /// What has touches of what is out be signals ([`crate::words::Barrier::word`]).
    pub barrier: u32,
    /// Pages that a call may hold, at most.
    pub hold_pages_max: u32,
    /// What signals do, as the program believes.
    pub actions: [Action; SIGNALS],
}

/// Of [`Slot::pins`]: the area for restartable sequences.
pub const PIN_RSEQ: usize = 0;
/// The list of robust futexes.
pub const PIN_ROBUST: usize = 1;
/// The word that is cleared at the thread's end.
pub const PIN_TASK: usize = 2;

/// A letter to the keeper, and its answer.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(payload), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Letter {
    /// One of [`letter_state`]; who waits for an answer waits for this to change.
    pub state: u32,
    /// One of [`letter`].
    pub kind: u32,
    /// What it says.
    pub arguments: [u64; 4],
    /// The answer: an error if it is negative.
    pub answer: i64,
    /// Nothing.
    pub unused: [u64; 2],
}

/// In a page of letters, the word that counts them.
pub const COUNTED_AT: usize = 0;
/// And the one that is 1 if the process wants its gate open: it is about to filter its calls.
pub const WISH_AT: usize = 4;
/// Letters of a page, after a first line that has these words.
pub const LETTERS: usize = PAGE_BYTES / size_of::<Letter>() - 1;

/// How far a letter is.
pub mod letter_state {
    /// Anybody may take it.
    pub const FREE: u32 = 0;
    /// It is being written.
    pub const TAKEN: u32 = 1;
    /// It can be read.
    pub const SENT: u32 = 2;
    /// It is answered.
    pub const ANSWERED: u32 = 3;
}

/// What letters are about.
pub mod letter {
    /// A fork is about to be made: from the answer on nothing moves or comes. The answer is what
    /// the next two say first.
    pub const FORK: u32 = 1;
    /// From the child: it is there, and this is its number, and that of its userfaultfd. It has its
    /// pages when the answer comes, which is the page of its letters.
    pub const BORN: u32 = 2;
    /// From the parent: the child was made, or not (0). The answer comes when it has its pages.
    pub const FORKED: u32 = 3;
    /// A range that children do not get as it is, or do so again: where it is, how many bytes, and
    /// the advice (MADV_WIPEONFORK, MADV_DONTFORK and what undoes them).
    pub const KEPT: u32 = 4;
    /// A range whose pages may go out now (MADV_PAGEOUT): where it is, and how many bytes.
    pub const OUT: u32 = 5;
    /// A touch that was refused: where, and what it was ([`super::access`]). When the answer comes
    /// it is to be tried again; an error: it is the program's mistake.
    pub const FAULT: u32 = 6;
    /// Mappings are about to be changed: from the answer on nothing moves or comes.
    pub const CHANGE: u32 = 7;
    /// A range is not mapped any more: where it was, and how many bytes.
    pub const UNMAPPED: u32 = 8;
    /// The content of a range was removed: where it is, and how many bytes.
    pub const REMOVED: u32 = 9;
    /// A range was moved: from where, to where, and how many bytes.
    pub const REMAPPED: u32 = 10;
    /// Mappings were changed. Protections are as before (0), or not (1).
    pub const CHANGED: u32 = 11;
    /// What is at a place (without guards). The answer is how many bytes from there on
    /// are alike, and 1 if those are shut.
    pub const LOOK: u32 = 12;
    /// What may be done with a range, where it is shut when it is open: where, how many bytes, and
    /// what (as for `mprotect`).
    pub const PROTECTED: u32 = 13;
}

/// What was to be done with memory, bit by bit, as the processor says it.
pub mod access {
    /// To write it.
    pub const WRITE: u64 = 2;
    /// To execute it.
    pub const EXECUTE: u64 = 16;
}
