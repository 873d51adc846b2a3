//! Errands: closures that program threads have run in the pager's process.
//!
//! Owns: the list of what was posted, and the waiting on both sides. Errands run one at a time.
//! Invariants: who posts holds no lock, so a process that shares this memory (by vfork or CLONE_VM)
//! may be killed at any step and stops nobody. What such a process posts is kept in memory of its
//! own ([`run_kept`]): it may run after its poster's end.
//! Orderings: a note is published with Release and taken with Acquire; its result likewise by its
//! state.
//! Rejected: a socket or an eventfd, which would be descriptors in the program's table; one desk
//! with a lock for the turns, which a killed process keeps.

use crate::futex;
use crate::real::kernel_mmap;
use libc::c_void;
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};
use std::time::Duration;

unsafe extern "C" {
    fn overspill_pager_is_home() -> libc::c_int;
}

/// One errand. WAITING becomes DONE, and then the note is its poster's again; a [`Standing`] one
/// becomes WAITING again.
struct Note {
    state: AtomicU32,
    next: *mut Note,
    act: unsafe fn(*mut c_void),
    /// The argument of `act`.
    what: *mut c_void,
}

const WAITING: u32 = 0;
const DONE: u32 = 1;

impl Note {
    fn new(act: unsafe fn(*mut c_void), what: *mut c_void) -> Self {
        Self { state: AtomicU32::new(WAITING), next: null_mut(), act, what }
    }
}

/// The notes that nobody has taken yet, latest first.
static POSTED: AtomicPtr<Note> = AtomicPtr::new(null_mut());
/// Changes when a note is posted.
static POSTS: AtomicU32 = AtomicU32::new(0);
/// Changes when an errand is done.
static ENDS: AtomicU32 = AtomicU32::new(0);

/// True on a thread of the pager's process.
fn is_home() -> bool {
    // SAFETY: reads a variable of this thread.
    unsafe { overspill_pager_is_home() != 0 }
}

/// Runs `errand` in the pager's process and returns when it is done. The closure and what it refers
/// to must not be in managed memory.
pub(super) fn run(mut errand: &mut dyn FnMut()) {
    unsafe fn act(what: *mut c_void) {
        // SAFETY: what `run` passes; it waits meanwhile.
        unsafe { (*what.cast::<&mut dyn FnMut()>())() }
    }
    if is_home() {
        return errand();
    }
    let mut note = Note::new(act, (&raw mut errand).cast());
    // SAFETY: the note stays until the errand is done.
    unsafe { run_note(&raw mut note) };
}

/// A closure with its note, its result, and nothing on the poster's stack.
struct Parcel<F, R> {
    note: Note,
    body: Option<F>,
    result: Option<R>,
}

/// As [`run`], for a caller that may be killed alone. `body` must own what it needs.
pub(super) fn run_kept<R, F: FnOnce() -> R>(body: F) -> R {
    unsafe fn act<R, F: FnOnce() -> R>(what: *mut c_void) {
        // SAFETY: the parcel that `run_kept` made, in memory that only it unmaps, afterwards.
        let parcel = unsafe { &mut *what.cast::<Parcel<F, R>>() };
        parcel.result = parcel.body.take().map(|body| body());
    }
    if is_home() {
        return body();
    }
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let bytes = size_of::<Parcel<F, R>>();
    let room = kernel_mmap(null_mut(), bytes, protection, flags, -1, 0);
    if room == libc::MAP_FAILED {
        let (mut body, mut result) = (Some(body), None);
        run(&mut || result = body.take().map(|body| body()));
        return result.expect("an errand is run once");
    }
    let parcel = room.cast::<Parcel<F, R>>();
    // SAFETY: a fresh mapping, large enough and aligned to a page; the note stays until the errand
    // is done.
    let result = unsafe {
        parcel.write(Parcel { note: Note::new(act::<R, F>, room), body: Some(body), result: None });
        run_note(&raw mut (*parcel).note);
        (*parcel).result.take()
    };
    // SAFETY: nothing is left in it.
    unsafe { libc::syscall(libc::SYS_munmap, room, bytes) };
    result.expect("an errand is run once")
}

/// An errand that nobody waits for, and that is posted again and again, by one thread.
pub(super) struct Standing {
    note: UnsafeCell<Note>,
}

// SAFETY: a note that is DONE belongs to the one thread that posts it; until then, but for its
// state, to the thread that runs errands.
unsafe impl Sync for Standing {}

impl Standing {
    /// Makes one of `what`.
    pub(super) const fn new(what: &'static fn()) -> Self {
        unsafe fn act(what: *mut c_void) {
            // SAFETY: what `new` has stored.
            unsafe { (*what.cast::<fn()>())() }
        }
        let what = std::ptr::from_ref(what).cast_mut().cast();
        let note = Note { state: AtomicU32::new(DONE), next: null_mut(), act, what };
        Self { note: UnsafeCell::new(note) }
    }

    /// Posts it, unless it is posted and not done yet. Allocates nothing, and does not wait.
    pub(super) fn post(&'static self) {
        let note = self.note.get();
        // SAFETY: the state is atomic; a note that is DONE is the caller's, and a static stays in
        // place.
        unsafe {
            if (*note).state.load(Acquire) == DONE {
                (*note).state.store(WAITING, Relaxed);
                post(note);
            }
        }
    }

    /// Forgets that it was posted, in a forked child.
    pub(super) fn renew(&self) {
        // SAFETY: as above; the child has one thread.
        unsafe { (*self.note.get()).state.store(DONE, Relaxed) };
    }
}

/// Has `last` end this process, on its first thread, and ends it after `patience` in any case.
/// Allocates nothing.
pub(super) fn run_last(last: fn(), patience: Duration) -> ! {
    unsafe fn act(last: *mut c_void) {
        // SAFETY: what `run_last` passes; it waits meanwhile.
        unsafe { (*last.cast::<fn()>())() }
    }
    let mut last = last;
    let mut note = Note::new(act, (&raw mut last).cast());
    // SAFETY: the note stays until this process ends.
    unsafe { post(&raw mut note) };
    std::thread::sleep(patience);
    super::end();
}

/// Posts a note, and waits until its errand is done.
///
/// # Safety
/// The note stays in place until then.
unsafe fn run_note(note: *mut Note) {
    // SAFETY: contract.
    let state = unsafe {
        post(note);
        &(*note).state
    };
    futex::wait_while(&ENDS, |_| state.load(Acquire) == WAITING);
}

/// Posts a note.
///
/// # Safety
/// It stays in place until its errand is done.
unsafe fn post(note: *mut Note) {
    let mut latest = POSTED.load(Relaxed);
    loop {
        // SAFETY: ours until the exchange succeeds.
        unsafe { (*note).next = latest };
        match POSTED.compare_exchange_weak(latest, note, Release, Relaxed) {
            Ok(_) => break,
            Err(now) => latest = now,
        }
    }
    POSTS.fetch_add(1, Release);
    futex::wake(&POSTS);
}

/// Runs errands forever, on the first thread of the pager's process.
pub(super) fn serve() -> ! {
    loop {
        let posts = POSTS.load(Acquire);
        let mut note = POSTED.swap(null_mut(), Acquire);
        if note.is_null() {
            futex::wait_while(&POSTS, |now| now == posts);
        }
        while !note.is_null() {
            // SAFETY: it stays in place until it is DONE, and is not touched after that.
            unsafe {
                let next = (*note).next;
                ((*note).act)((*note).what);
                (*note).state.store(DONE, Release);
                note = next;
            }
            ENDS.fetch_add(1, Release);
            futex::wake(&ENDS);
        }
    }
}

/// Forgets what was posted, in a forked child, where the posters do not exist.
pub(super) fn renew() {
    POSTED.store(null_mut(), Relaxed);
}
