//! Swap-in: submitting reads of pages.
//!
//! Owns: the requests for a faulting page and its window.
//! Invariant: each page in a read is cached under its entry, and the request holds its lock until
//! the completion.
//! Not here: which pages are in the window (`readahead`), what a completion does (`complete`).

use crate::engine::Engine;
use crate::transfer::{PageRead, Purpose, ToRead};
use crate::worker::Worker;

/// Most pages in one request.
const RUN_MAX: usize = 64;

impl Engine {
    /// Submits one request per run of adjacent slots, with the purpose that `purpose` gives it.
    pub(crate) fn submit_reads(
        &self,
        worker: &mut Worker,
        mut reads: Vec<PageRead>,
        purpose: impl Fn(&[PageRead]) -> Purpose,
    ) {
        while !reads.is_empty() {
            let pairs = reads.windows(2).take_while(|pair| pair[0].entry.precedes(pair[1].entry));
            let run = (pairs.count() + 1).min(RUN_MAX);
            let purpose = purpose(&reads[..run]);
            worker.submit_read(reads.drain(..run), purpose);
            worker.complete_in_place(self);
        }
        worker.scratch.reads = reads;
        worker.flush();
    }

    /// Makes reads into bounce memory, from which the pages are mapped by a copy.
    pub(crate) fn read_and_map(&self, worker: &mut Worker, pages: &[ToRead]) -> Vec<PageRead> {
        let first = self.take_bounce(worker, pages.len());
        let mut reads = std::mem::take(&mut worker.scratch.reads);
        for (&ToRead { entry, frame }, at) in pages.iter().zip(first..) {
            reads.push(PageRead { entry, into: worker.bounce.buffer_for(at, frame) });
        }
        reads
    }

    /// Takes bounce memory for `pages` pages; waits for this worker's own reads if it is all in
    /// use.
    fn take_bounce(&self, worker: &mut Worker, pages: usize) -> usize {
        loop {
            match worker.bounce.take(pages) {
                Some(first) => return first,
                None => worker.wait(self),
            }
        }
    }
}
