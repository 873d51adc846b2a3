//! What threads hold whose calls a gate catches.
//!
//! Owns: saying that pages are about to move, and which must not.
//! Invariants: whoever holds something sees that pages move, or is seen to hold it: each side
//! writes its word before it reads the other's (`gate/slots.rs`, `await_agent`). Pins are held
//! always.
//! Not here: what a call holds (`gate/holds.rs`).

use crate::gate::{
    GLOBALS_AT, Globals, RETURNS_AT, Return, SLOT_AT, SLOT_BYTES, SLOTS_AT, STUB_BYTES, Slot, Span,
    THREADS_MAX,
};
use crate::words::{PAGE_BYTES, Run};
use core::mem::offset_of;
use core::ptr::read_volatile;
use core::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

/// Has a gate write letters from now on, to the first page.
pub fn open_letters(gate: usize) {
    let at = (gate + GLOBALS_AT + offset_of!(Globals, letters)) as *mut u32;
    // SAFETY: the gate is mapped, and its threads stand still.
    unsafe { AtomicU32::from_ptr(at) }.store(1, Release);
}

/// Pages move, as long as this lives. Without a gate it is nothing.
pub struct Moving {
    gate: usize,
}

impl Moving {
    /// Says that pages are about to move; `gate` is where the gate is, or 0.
    pub fn begin(gate: usize) -> Self {
        let moving = Self { gate };
        if let Some(word) = moving.word() {
            word.fetch_add(1, SeqCst);
            // SeqCst: with the gate's.
            fence(SeqCst);
        }
        moving
    }

    fn word(&self) -> Option<&AtomicU32> {
        let at = self.gate + GLOBALS_AT + offset_of!(Globals, moving);
        // SAFETY: the gate is mapped as long as the agent has been told of it.
        (self.gate != 0).then(|| unsafe { AtomicU32::from_ptr(at as *mut u32) })
    }

    /// How many pages of a run, from its start on, nobody holds.
    pub fn free_pages(&self, run: &Run) -> u32 {
        if self.gate == 0 {
            return run.pages;
        }
        let slots_at = (self.gate + GLOBALS_AT + offset_of!(Globals, slots)) as *mut u32;
        // SAFETY: as above.
        let slots = unsafe { AtomicU32::from_ptr(slots_at) }.load(Acquire) as usize;
        let slots = 0..slots.min(THREADS_MAX);
        slots.fold(run.pages, |most, slot| u32::min(most, self.free_of(slot, run)))
    }

    fn free_of(&self, slot: usize, run: &Run) -> u32 {
        let held_at = self.gate + RETURNS_AT + slot * STUB_BYTES + offset_of!(Return, held);
        let slot = (self.gate + SLOTS_AT + slot * SLOT_BYTES + SLOT_AT) as *const Slot;
        // SAFETY: as above; the kernel gives zeros where nobody has written yet.
        let holds = unsafe { AtomicU64::from_ptr(held_at as *mut u64) }.load(Acquire) != 0;
        // SAFETY: places of fields.
        let (holds_at, pins_at) = unsafe { (&raw const (*slot).holds, &raw const (*slot).pins) };
        let pins = each(pins_at.cast(), crate::gate::PINS).map(|span| free_before(span, run));
        let most = pins.fold(run.pages, u32::min);
        if !holds {
            return most;
        }
        let spans = each(holds_at.cast(), crate::gate::HOLDS_MAX).take_while(|span| span.end != 0);
        spans.map(|span| free_before(span, run)).fold(most, u32::min)
    }
}

/// Spans that another task writes.
fn each(first: *const Span, count: usize) -> impl Iterator<Item = Span> {
    // SAFETY: the callers name fields of that many spans in mapped memory.
    (0..count).map(move |n| unsafe { read_volatile(first.wrapping_add(n)) })
}

/// How many pages of a run come before the first of a span.
fn free_before(span: Span, run: &Run) -> u32 {
    let page = PAGE_BYTES as u64;
    let end = run.address.wrapping_add(u64::from(run.pages) * page);
    if span.start >= end || span.end <= run.address {
        return run.pages;
    }
    (span.start.saturating_sub(run.address) / page) as u32
}

impl Drop for Moving {
    fn drop(&mut self) {
        if let Some(word) = self.word() {
            word.fetch_add(1, Release);
        }
    }
}
