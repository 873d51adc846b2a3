//! Model-checked interleavings of a pool page's word. Run with `RUSTFLAGS="--cfg loom"`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use overspill_base::shared::Table;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{Arc, AtomicU64};
use overspill_base::{FrameNo, PageNo};
use overspill_engine::Unpublished;
use overspill_space::{Asked, Words};

const PAGE: PageNo = PageNo(0);
const FRAME: FrameNo = FrameNo(5);

fn model(test: impl Fn() + Sync + Send + 'static) {
    // Two preemptions reach every pair of steps that can race here.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(test);
}

/// One page that is in memory, with its bytes.
struct Page {
    words: Words,
    bytes: UnsafeCell<u32>,
}

// SAFETY: `bytes` is accessed as its word allows; loom reports it if accesses are not exclusive.
unsafe impl Sync for Page {}
// SAFETY: as above.
unsafe impl Send for Page {}

fn page() -> Arc<Page> {
    let words = Words::new(Table::on_heap(1, || AtomicU64::new(0)));
    words.publish(PAGE, FRAME);
    Arc::new(Page { words, bytes: UnsafeCell::new(0) })
}

/// Runs `f` on a separate thread.
fn spawn<R: 'static>(
    page: &Arc<Page>,
    f: impl FnOnce(&Page) -> R + 'static,
) -> loom::thread::JoinHandle<R> {
    let page = page.clone();
    loom::thread::spawn(move || f(&page))
}

impl Page {
    fn read(&self) {
        if let Asked::Granted(frame) = self.words.try_read(PAGE, false) {
            assert_eq!(frame, FRAME);
            // SAFETY: pinned.
            self.bytes.with(|bytes| unsafe { bytes.read() });
            self.words.end_read(PAGE);
        }
    }

    fn write(&self) -> bool {
        let granted = self.words.try_write(PAGE, false) == Asked::Granted(FRAME);
        if granted {
            // SAFETY: the only writer.
            self.bytes.with_mut(|bytes| unsafe { *bytes += 1 });
            self.words.end_write(PAGE);
        }
        granted
    }

    fn insist(&self) {
        while !self.write() {
            self.words.wait(PAGE);
        }
    }

    /// Evicts the page, changes its frame as another page would, and brings it back, unless it is
    /// in use.
    fn evict(&self) {
        if matches!(self.words.unpublish(PAGE), Unpublished::Clean | Unpublished::Changed) {
            // SAFETY: unpublished, so the frame is the engine's.
            self.bytes.with_mut(|bytes| unsafe { *bytes += 0 });
            self.words.publish(PAGE, FRAME);
        }
    }
}

/// A reader, a writer and an eviction of one page: accesses to its bytes exclude each other, except
/// for readers.
#[test]
fn readers_a_writer_and_an_eviction_exclude_each_other() {
    model(|| {
        let page = page();
        let (reader, writer) = (spawn(&page, Page::read), spawn(&page, Page::write));
        page.evict();
        reader.join().unwrap();
        writer.join().unwrap();
    });
}

/// An eviction sees a change made before it: the page is not taken for clean.
#[test]
fn an_eviction_after_a_change_knows_of_it() {
    model(|| {
        let page = page();
        let writer = spawn(&page, Page::write);
        let first = page.words.unpublish(PAGE);
        if matches!(first, Unpublished::Clean | Unpublished::Changed) {
            page.words.publish(PAGE, FRAME);
        }
        let changed = writer.join().unwrap();
        let second = page.words.unpublish(PAGE);
        let known = first == Unpublished::Changed || second == Unpublished::Changed;
        assert_eq!(known, changed, "{first:?}, then {second:?}");
    });
}

/// Two writers and a reader: a thread that finds the page in use sleeps and is woken.
#[test]
fn a_sleeping_writer_is_woken() {
    model(|| {
        let page = page();
        let (writer, reader) = (spawn(&page, Page::insist), spawn(&page, Page::read));
        page.insist();
        writer.join().unwrap();
        reader.join().unwrap();
        // SAFETY: the only thread left.
        assert_eq!(page.bytes.with(|bytes| unsafe { bytes.read() }), 2);
    });
}

/// A look at a page that a writer changes, or whose frame is reused by another page before it comes
/// back, sees both halves of one state or nothing.
#[test]
fn a_look_sees_one_state_or_nothing() {
    for evicted in [false, true] {
        model(move || {
            let words = Words::new(Table::on_heap(1, || AtomicU64::new(0)));
            words.publish(PAGE, FRAME);
            let halves = [AtomicU64::new(0), AtomicU64::new(0)];
            let state = Arc::new((words, halves));
            let changer = loom::thread::spawn({
                let state = state.clone();
                move || change(&state.0, &state.1, evicted)
            });
            let (words, halves) = &*state;
            if let Some(look) = words.peek(PAGE) {
                let seen: Vec<u64> = halves.iter().map(|half| half.load(Relaxed)).collect();
                if words.is_unchanged(PAGE, look) {
                    assert_eq!(seen[0], seen[1], "torn");
                }
            }
            changer.join().unwrap();
        });
    }
}

/// Writes both halves, as a writer or as a device that reads another page into the frame.
fn change(words: &Words, halves: &[AtomicU64; 2], evicted: bool) {
    if evicted && words.unpublish(PAGE) != Unpublished::Clean {
        return;
    }
    if !evicted {
        assert_eq!(words.try_write(PAGE, false), Asked::Granted(FRAME));
    }
    halves.iter().for_each(|half| half.store(1, Relaxed));
    match evicted {
        true => words.publish(PAGE, FRAME),
        false => words.end_write(PAGE),
    }
}
