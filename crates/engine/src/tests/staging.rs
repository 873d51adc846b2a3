//! Staging memory: what is emptied, and when.

use crate::memory::PageMemory;
use crate::space::{AddressSpace, Mapped, MovingSpace, Unmapped};
use crate::staging::{Staging, runs};
use crate::tuning::Tuning;
use overspill_base::shared::PageArena;
use overspill_base::sync::Arc;
use overspill_base::{PAGE_SIZE, PageNo};
use std::ops::Range;
use std::sync::Mutex;

/// Notes what is emptied; nothing else is asked of it.
#[derive(Default)]
struct Emptied {
    emptied: Mutex<Vec<Range<usize>>>,
    copies_out: bool,
}

impl Emptied {
    fn take(&self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.emptied.lock().unwrap())
    }
}

impl AddressSpace for Emptied {
    fn span(&self, _: PageNo) -> usize {
        unreachable!()
    }
    fn zap(&self, _: PageNo, _: usize) {
        unreachable!()
    }
    fn wake(&self, _: PageNo) {
        unreachable!()
    }
    fn poison(&self, _: PageNo) {
        unreachable!()
    }
}

impl MovingSpace for Emptied {
    fn map(&self, _: PageNo, _: &[u8]) -> Mapped {
        unreachable!()
    }
    fn map_zeros(&self, _: PageNo, _: usize) -> Mapped {
        unreachable!()
    }
    fn find(&self, _: PageNo) -> bool {
        unreachable!()
    }
    fn unmap(&self, _: PageNo, _: &PageArena, _: Range<usize>) -> Unmapped {
        unreachable!()
    }
    fn recycle(&self, _: &PageArena, pages: Range<usize>) {
        self.emptied.lock().unwrap().push(pages);
    }
    fn copies_out(&self) -> bool {
        self.copies_out
    }
}

fn staging(chunks: usize) -> Staging {
    let arena = PageArena::new(chunks * Tuning::CHUNK_PAGES).unwrap();
    Staging::new(Arc::new(PageMemory::new(arena, PAGE_SIZE)))
}

#[test]
fn runs_are_found() {
    let found = |word| runs(word).collect::<Vec<_>>();
    assert!(found(0).is_empty());
    assert_eq!(found(0b1110_0110), [1..3, 5..8]);
    assert_eq!(found(1 << 63 | 1), [0..1, 63..64]);
    let whole = 0..64;
    assert_eq!(found(u64::MAX), [whole]);
}

#[cfg(not(loom))]
#[test]
fn a_chunk_is_emptied_whole_while_few_are_partly_held() {
    let (staging, space) = (staging(8), Emptied::default());
    let chunk = staging.take_chunk(&space).unwrap();
    staging.trim(chunk.start + 10..chunk.end, &space);
    (chunk.start..chunk.start + 9).for_each(|page| staging.release(page..page + 1, &space));
    assert!(space.take().is_empty());
    staging.release(chunk.start + 9..chunk.start + 10, &space);
    assert_eq!(space.take(), [chunk]);
    assert_eq!(staging.free_chunks(), 8);
}

#[cfg(not(loom))]
#[test]
fn a_page_is_emptied_at_once_while_many_chunks_are_partly_held() {
    let (staging, space) = (staging(8), Emptied::default());
    let chunks: Vec<Range<usize>> = (0..4).map(|_| staging.take_chunk(&space).unwrap()).collect();
    // What was never put to use has no memory.
    chunks[1..].iter().for_each(|chunk| staging.trim(chunk.start + 20..chunk.end, &space));
    for chunk in &chunks[..3] {
        staging.release(chunk.start..chunk.start + 5, &space);
    }
    assert!(space.take().is_empty());
    let (first, fourth) = (chunks[0].start, chunks[3].start);
    staging.release(first + 8..first + 10, &space);
    assert_eq!(space.take(), [first..first + 5, first + 8..first + 10]);
    staging.release(first + 5..first + 6, &space);
    let once = first + 5..first + 6;
    assert_eq!(space.take(), [once], "no page twice");
    staging.release(fourth..fourth + 20, &space);
    let _emptied = space.take();
    for chunk in &chunks[1..3] {
        staging.release(chunk.start + 5..chunk.start + 20, &space);
    }
    space.take();
    staging.release(first + 20..first + 30, &space);
    assert!(space.take().is_empty(), "one chunk is partly held");
}

/// A small part of all: those beyond it are emptied.
#[cfg(not(loom))]
#[test]
fn chunks_that_are_copied_to_are_used_again_as_they_are() {
    let (staging, space) = (staging(32), Emptied { copies_out: true, ..Emptied::default() });
    let take = || staging.take_chunk(&space).unwrap();
    let chunks = [take(), take(), take()];
    chunks.iter().for_each(|chunk| staging.release(chunk.clone(), &space));
    assert_eq!(space.take(), [chunks[2].clone()]);
    assert_eq!([take(), take()], [chunks[1].clone(), chunks[0].clone()]);
    assert!(space.take().is_empty());
}

/// Two threads release a chunk's last pages, and one of them takes it again: nobody empties it
/// after that.
#[cfg(loom)]
#[test]
fn a_chunk_that_was_taken_again_is_not_emptied() {
    loom::model(|| {
        // So few chunks that all slack is emptied at once.
        let (staging, space) = (Arc::new(staging(1)), Arc::new(Emptied::default()));
        let chunk = staging.take_chunk(&*space).unwrap();
        let start = chunk.start;
        staging.trim(start + 3..chunk.end, &*space);
        staging.release(start + 2..start + 3, &*space);
        let other = (staging.clone(), space.clone());
        let releaser = loom::thread::spawn(move || {
            other.0.release(start..start + 1, &*other.1);
        });
        staging.release(start + 1..start + 2, &*space);
        if staging.take_chunk(&*space).is_some() {
            space.take();
            releaser.join().unwrap();
            assert!(space.take().is_empty(), "its new owner's pages are gone");
        } else {
            releaser.join().unwrap();
        }
    });
}
