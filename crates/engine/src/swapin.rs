//! Reading pages in.
//!
//! Owns: the requests for a faulting page and its window. Invariant: each page in a read is cached
//! under its entry, and its lock is lent to the request until the completion.
//! Not here: which pages are in the window (`readahead`), what a completion does (`complete`).

use crate::engine::Engine;
use crate::transfer::{PageRead, Purpose};
use crate::worker::Worker;
use overspill_area::SwapEntry;

/// Pages in one request for a run of adjacent slots.
const RUN_MAX: usize = 64;

impl Engine {
    /// Submits one request per run of adjacent slots, for what `purpose` says of it.
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

    /// Reads that are to be mapped, by a copy, when they are done.
    pub(crate) fn read_and_map(&self, worker: &mut Worker, entries: &[SwapEntry]) -> Vec<PageRead> {
        let first = self.take_bounce(worker, entries.len());
        let mut reads = std::mem::take(&mut worker.scratch.reads);
        let into = (first..).map(|page| worker.bounce.buffer(page));
        reads.extend(entries.iter().zip(into).map(|(&entry, into)| PageRead { entry, into }));
        reads
    }

    /// Bounce memory for `pages` pages; waits for this worker's own reads when it is all in use.
    fn take_bounce(&self, worker: &mut Worker, pages: usize) -> usize {
        loop {
            match worker.bounce.take(pages) {
                Some(first) => return first,
                None => worker.wait(self),
            }
        }
    }
}
