//! A gate in ordinary memory: letters, as threads of programs write them.
//!
//! Owns: the files that a guest shares with its keeper, and which letters are whose.
//! Invariant: a letter is taken before it is written, and free when its answer was read.
//! Not here: who writes what, and when (`world`).

use overspill_agent::PAGE_BYTES;
use overspill_agent::gate::{COUNTED_AT, LETTERS, LETTERS_BYTES, Letter, WISH_AT, letter_state};
use overspill_base::shared::{Mapping, Table};
use overspill_base::sync::Arc;
use overspill_wire::Descriptor;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

const WORD_BYTES: usize = size_of::<u32>();
const LONG_BYTES: usize = size_of::<u64>();

/// Where a process writes its letters: which gate's they are, and the page.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Page {
    pub(super) gate: usize,
    pub(super) number: usize,
}

/// A letter: its page, and which of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent(Page, usize);

impl Sent {
    fn page(self) -> Page {
        self.0
    }

    fn at(self, field: usize) -> usize {
        self.0.number * PAGE_BYTES + (self.1 + 1) * size_of::<Letter>() + field
    }
}

/// The letters of a guest and of the children that it forks.
#[derive(Debug)]
pub(crate) struct Gate {
    words: Table<AtomicU32>,
    longs: Table<AtomicU64>,
    bell: OwnedFd,
    file: OwnedFd,
}

impl Gate {
    pub(crate) fn new() -> Self {
        let [bell, file] = [PAGE_BYTES, LETTERS_BYTES].map(sealed);
        let mapping = Arc::new(Mapping::shared(&file, LETTERS_BYTES).unwrap());
        Self {
            words: Table::within(&mapping, 0, LETTERS_BYTES / WORD_BYTES),
            longs: Table::within(&mapping, 0, LETTERS_BYTES / LONG_BYTES),
            bell,
            file,
        }
    }

    /// Bell and letters, as an attach hands them over.
    pub(crate) fn files(&self) -> [Descriptor; 2] {
        [&self.bell, &self.file].map(|file| file.try_clone().unwrap().into())
    }

    fn state(&self, letter: Sent) -> &AtomicU32 {
        &self.words[letter.at(offset_of!(Letter, state)) / WORD_BYTES]
    }

    fn long(&self, letter: Sent, field: usize) -> &AtomicU64 {
        &self.longs[letter.at(field) / LONG_BYTES]
    }

    /// Writes a letter on a page.
    pub(crate) fn send(&self, page: Page, kind: u32, arguments: [u64; 4]) -> Sent {
        let mut letters = (0..LETTERS).map(|number| Sent(page, number));
        let is_free = |letter: &Sent| self.state(*letter).load(Acquire) == letter_state::FREE;
        let letter = letters.find(is_free).expect("few threads");
        self.words[letter.at(offset_of!(Letter, kind)) / WORD_BYTES].store(kind, Release);
        for (n, argument) in arguments.into_iter().enumerate() {
            self.long(letter, offset_of!(Letter, arguments) + n * LONG_BYTES)
                .store(argument, Release);
        }
        self.state(letter).store(letter_state::SENT, Release);
        self.words[(page.number * PAGE_BYTES + COUNTED_AT) / WORD_BYTES].fetch_add(1, Release);
        letter
    }

    pub(crate) fn is_answered(&self, letter: Sent) -> bool {
        self.state(letter).load(Acquire) == letter_state::ANSWERED
    }

    /// The answer, if there is one; the letter is anybody's then.
    pub(crate) fn take_answer(&self, letter: Sent) -> Option<i64> {
        if !self.is_answered(letter) {
            return None;
        }
        let answer = self.long(letter, offset_of!(Letter, answer)).load(Acquire) as i64;
        self.state(letter).store(letter_state::FREE, Release);
        Some(answer)
    }

    /// Says that a process wants its gate open.
    pub(crate) fn wish_out(&self, page: Page) {
        self.words[(page.number * PAGE_BYTES + WISH_AT) / WORD_BYTES].store(1, Release);
    }
}

/// All gates: one for each process that was attached to, which its children write by before they
/// are.
#[derive(Debug)]
pub(crate) struct Gates(Vec<Gate>);

impl Gates {
    pub(crate) fn new() -> Self {
        Self(vec![Gate::new()])
    }

    /// Returns the first page of a new one.
    pub(crate) fn add(&mut self) -> Page {
        self.0.push(Gate::new());
        Page { gate: self.0.len() - 1, number: 0 }
    }

    fn of(&self, page: Page) -> &Gate {
        &self.0[page.gate]
    }

    /// Bell and letters, as an attach hands them over.
    pub(crate) fn files(&self, page: Page) -> [Descriptor; 2] {
        self.of(page).files()
    }

    pub(crate) fn send(&self, page: Page, kind: u32, arguments: [u64; 4]) -> Sent {
        self.of(page).send(page, kind, arguments)
    }

    pub(crate) fn is_answered(&self, letter: Sent) -> bool {
        self.of(letter.page()).is_answered(letter)
    }

    pub(crate) fn take_answer(&self, letter: Sent) -> Option<i64> {
        self.of(letter.page()).take_answer(letter)
    }

    pub(crate) fn wish_out(&self, page: Page) {
        self.of(page).wish_out(page);
    }
}

fn sealed(bytes: usize) -> OwnedFd {
    let file = memfd_create("twin", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes as u64).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}
