//! Reclaim: freeing frames by evicting pages.
//!
//! Owns: the choice of victims and their move to staging memory.
//! Invariants: a victim is isolated from the lists with its page lock held; when `shrink` returns,
//! every isolated frame has been put back, freed or put under writeback.
//! Not here: the writes (`writeback`); when it runs (`background`, `shortage`).

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::lru::LruList;
use crate::page::Staged;
use crate::space::{BufferPool, Unpublished};
use crate::store::{Moving, Store};
use crate::types::flag;
use crate::worker::{Scratch, Worker, WorkerKind};
use overspill_base::FrameNo;
use overspill_base::stats::Event;
use overspill_base::sync::Ordering::Relaxed;
use std::ops::Range;

/// Reclaim waits when more than this part of all frames is being written.
const WRITTEN_PART: usize = 16;
/// Pages for which it pays to call their owner.
const CALL_PAGES: usize = 8;

impl Engine {
    /// Runs one round; without progress, or if much is being written, waits for this worker's I/O.
    /// False if there is none.
    pub(crate) fn reclaim_round(&self, worker: &mut Worker, direct: bool) -> bool {
        if self.writes_suffice() && worker.in_flight() > 0 {
            worker.wait(self);
            return true;
        }
        let progress = self.shrink(worker, direct) + worker.poll(self);
        if progress == 0 && worker.in_flight() == 0 {
            return false;
        }
        if progress == 0 {
            worker.wait(self);
        }
        true
    }

    /// True if so much is being written that to evict more would free no frame sooner. It would
    /// push out what was read ahead: with a round trip of 5 ms pages were modified in order at 11
    /// 000 a second without this, and at 68 000 with it. (Linux throttles reclaim at writeback.)
    fn writes_suffice(&self) -> bool {
        let enough = (self.frames.limit() / WRITTEN_PART).max(2 * self.tuning.reclaim_batch_pages);
        self.writes_in_flight.load(Relaxed) > enough
    }

    /// Runs one round: isolates a batch from the inactive tail, frees the clean pages and starts
    /// writing the rest. Returns how many frames were freed or put under writeback.
    pub(crate) fn shrink(&self, worker: &mut Worker, direct: bool) -> usize {
        self.lru.drain_own(&self.frames, &self.stats);
        self.refill_inactive();
        let want = worker.batch_pages;
        let mut isolated = std::mem::take(&mut worker.scratch.isolated);
        let mut seen = self.lru.isolate(want, &self.frames, &mut isolated);
        if isolated.len() < want {
            // The rest may be in other CPUs' batches.
            self.lru.drain(&self.frames, &self.stats);
            seen += self.lru.isolate(want - isolated.len(), &self.frames, &mut isolated);
        }
        if isolated.is_empty() && self.writes_in_flight.load(Relaxed) == 0 {
            // No inactive page can be evicted, for instance because the program has locked all of
            // them.
            let moved = self.lru.deactivate(want, &self.frames);
            self.stats.add(Event::pgdeactivate, moved as u64);
            seen += self.lru.isolate(want, &self.frames, &mut isolated);
        }
        let (scan, steal) = if direct {
            (Event::pgscan_direct, Event::pgsteal_direct)
        } else {
            (Event::pgscan_background, Event::pgsteal_background)
        };
        self.stats.add(scan, seen as u64);
        let evicted_before = worker.evicted;
        let mut victims = std::mem::take(&mut worker.scratch.victims);
        let sorted = isolated.drain(..).map(|locked| self.sort_out(locked, &mut victims));
        let dropped: usize = sorted.sum();
        worker.scratch.isolated = isolated;
        let progress = dropped + self.evict(worker, victims, usize::MAX);
        self.stats.add(steal, (dropped + worker.evicted - evicted_before) as u64);
        progress
    }

    /// Keeps the active list at most `active_ratio` times as long as the inactive one.
    fn refill_inactive(&self) {
        let (active, inactive) = self.lru.lens();
        let ratio = self.tuning.active_ratio;
        if inactive * ratio < active {
            let excess = (active - inactive * ratio).div_ceil(ratio + 1);
            let want = excess.min(self.tuning.reclaim_batch_pages);
            let moved = self.lru.deactivate(want, &self.frames);
            self.stats.add(Event::pgdeactivate, moved as u64);
        }
    }

    /// Frees or puts back one isolated page; mapped ones become victims. Returns how many it freed.
    pub(crate) fn sort_out(&self, locked: LockedPage, victims: &mut Vec<LockedPage>) -> usize {
        let has = |bit| self.frames.has(locked.frame(), bit);
        if has(flag::MAPPED) {
            victims.push(locked);
            return 0;
        }
        if has(flag::WRITEBACK) {
            self.put_back(locked, LruList::Inactive);
            return 0;
        }
        if has(flag::DIRTY) {
            self.restore(locked);
            return 0;
        }
        if has(flag::READAHEAD) {
            self.ahead.was_wasted();
        }
        self.drop_cached(locked);
        1
    }

    /// Maps a page whose write failed.
    fn restore(&self, locked: LockedPage) {
        let entry = self.frames.entry(locked.frame());
        let Some(word) = entry.and_then(|entry| self.table.load_on(locked.page(), entry)) else {
            self.frames.clear(locked.frame(), flag::DIRTY);
            return self.drop_cached(locked);
        };
        self.lru.add(&locked, LruList::Active, &self.frames);
        if let Staged::Mapped(locked) = self.map_staged(locked, word) {
            self.unlock(locked);
        }
    }

    /// Evicts victims, with neighbours up to `most` pages in all, at most a chunk. Without staging
    /// memory they are put back, until the writes in flight have completed.
    pub(crate) fn evict(
        &self,
        worker: &mut Worker,
        mut victims: Vec<LockedPage>,
        most: usize,
    ) -> usize {
        let progress = match &self.store {
            Store::Moving(moving) => self.evict_by_moving(worker, moving, &mut victims, most),
            Store::Pool(pool) => self.evict_from_pool(worker, &**pool, &mut victims),
        };
        debug_assert!(victims.is_empty());
        worker.scratch.victims = victims;
        progress
    }

    fn evict_by_moving(
        &self,
        worker: &mut Worker,
        moving: &Moving,
        victims: &mut Vec<LockedPage>,
        most: usize,
    ) -> usize {
        match worker.kind() {
            WorkerKind::InPlace => self.put_back_slotless(victims),
            WorkerKind::Pager => self.add_neighbours(victims, most.min(moving.staging.chunk)),
        }
        if victims.is_empty() {
            return 0;
        }
        let Some(chunk) = moving.staging.take_chunk(&*moving.space) else {
            victims.drain(..).for_each(|victim| self.put_back(victim, LruList::Inactive));
            return 0;
        };
        victims.sort_unstable_by_key(LockedPage::page);
        let mut destination = chunk.start;
        let mut moved = std::mem::take(&mut worker.scratch.moved);
        while !victims.is_empty() {
            let room = destination..destination + victims.len();
            destination = self.unmap_victims(worker, moving, victims, room, &mut moved);
        }
        moving.trim(destination..chunk.end);
        self.write_out(worker, moved)
    }

    /// Puts back victims without a slot, for the reclaim thread: allocating one allocates memory.
    fn put_back_slotless(&self, victims: &mut Vec<LockedPage>) {
        let slotless = victims.extract_if(.., |victim| self.own_slot(victim).is_none());
        slotless.for_each(|victim| self.put_back(victim, LruList::Inactive));
    }

    /// Adds inactive pages right after the victims, to make runs longer: one call moves a run, and
    /// one later read brings it back. Looks for them without the lists' lock and isolates them
    /// under one hold of it.
    fn add_neighbours(&self, victims: &mut Vec<LockedPage>, most: usize) {
        let mut neighbours = Vec::new();
        for victim in &*victims {
            let mut page = victim.page().plus(1);
            while victims.len() + neighbours.len() < most
                && let Some(frame) = self.resident_frame(page)
                && self.lru.looks_idle(frame, &self.frames)
            {
                neighbours.push(frame);
                page = page.plus(1);
            }
        }
        if neighbours.is_empty() {
            return;
        }
        for neighbour in self.lru.isolate_these(&neighbours, &self.frames) {
            if self.frames.has(neighbour.frame(), flag::MAPPED) {
                victims.push(neighbour);
            } else {
                self.put_back(neighbour, LruList::Inactive);
            }
        }
    }

    /// Moves victims to staging memory with one call, and deals with the pages that stop it; those
    /// behind them stay victims. Returns the end of what was moved.
    fn unmap_victims(
        &self,
        worker: &mut Worker,
        moving: &Moving,
        victims: &mut Vec<LockedPage>,
        room: Range<usize>,
        moved: &mut Vec<LockedPage>,
    ) -> usize {
        let pages = victims.len();
        let Scratch { runs, ends, left, .. } = &mut worker.scratch;
        let adjacent = victims.chunk_by(|a, b| b.page() == a.page().plus(1));
        runs.extend(adjacent.map(|run| run[0].page()..run[0].page().plus(run.len())));
        let mut destination = room.start;
        let owners = moving.space.unmap_runs(runs, self.memory.arena(), room, ends);
        assert_eq!(runs.len(), ends.len(), "an end for each run");
        let mut victims_in_order = victims.drain(..);
        for (run, end) in runs.drain(..).zip(ends.drain(..)) {
            let pages = run.end.index() - run.start.index();
            let mut run = victims_in_order.by_ref().take(pages);
            for victim in run.by_ref().take(end.moved) {
                self.note_moved(&victim, destination);
                moved.push(victim);
                destination += 1;
            }
            if let Some(why) = end.stopped
                && let Some(victim) = run.next()
            {
                self.unmap_refused(victim, why);
            }
            left.extend(run);
        }
        drop(victims_in_order);
        victims.append(left);
        let most = self.tuning.reclaim_batch_pages;
        worker.batch_pages = fitted(worker.batch_pages, most, (owners, pages));
        destination
    }

    fn note_moved(&self, victim: &LockedPage, to: usize) {
        self.frames.set_staged(victim.frame(), Some(to));
        self.frames.clear(victim.frame(), flag::MAPPED);
    }

    /// As `evict`, for a pool, whose pages stay in place.
    fn evict_from_pool(
        &self,
        worker: &mut Worker,
        pool: &dyn BufferPool,
        victims: &mut Vec<LockedPage>,
    ) -> usize {
        let mut progress = 0;
        let mut changed = std::mem::take(&mut worker.scratch.moved);
        for victim in victims.drain(..) {
            match pool.unpublish(victim.page()) {
                Unpublished::Pinned => {
                    self.stats.count(Event::evict_pinned);
                    self.put_back(victim, LruList::Active);
                }
                // The next round may evict it: that is progress too.
                Unpublished::Recent => {
                    progress += 1;
                    self.put_back(victim, LruList::Active);
                }
                Unpublished::Clean => match self.drop_copied(victim) {
                    None => {
                        progress += 1;
                        worker.evicted += 1;
                    }
                    Some(victim) => changed.push(victim),
                },
                Unpublished::Changed => changed.push(victim),
            }
        }
        changed.sort_unstable_by_key(LockedPage::page);
        changed.iter().for_each(|victim| self.prepare_write(victim.frame()));
        progress + self.write_out(worker, changed)
    }

    /// Frees the frame of an unpublished, unchanged page if a copy is on a slot; returns any other.
    fn drop_copied(&self, victim: LockedPage) -> Option<LockedPage> {
        let Some(entry) = self.frames.entry(victim.frame()) else { return Some(victim) };
        if self.swaps.get(entry.area()).is_leaving() {
            return Some(victim);
        }
        self.frames.clear(victim.frame(), flag::MAPPED);
        self.leave_to_copy(victim, entry);
        None
    }

    /// Gives an unpublished page the state of one that was moved to staging memory.
    fn prepare_write(&self, frame: FrameNo) {
        self.frames.clear(frame, flag::MAPPED);
        self.frames.set_staged(frame, Some(frame.index()));
    }
}

/// Fits a batch of `now` victims to how many owners were called for how many pages. Of many owners
/// few victims are taken, with more neighbours of each: 200 processes in a tenth of their memory
/// took 20 s, and more than 120 with 64 victims at a time.
fn fitted(now: usize, most: usize, (owners, pages): (usize, usize)) -> usize {
    if owners * CALL_PAGES > pages && owners > 1 {
        (now / 2).max(CALL_PAGES).min(most)
    } else if owners * most / 2 <= pages || owners == 1 {
        (now * 2).min(most)
    } else {
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_fits_how_many_owners_there_are() {
        assert_eq!(fitted(64, 64, (1, 64)), 64);
        assert_eq!(fitted(64, 64, (9, 64)), 32);
        assert_eq!(fitted(8, 64, (8, 8)), 8);
        assert_eq!([(8, 64), (3, 64), (2, 64)].map(|called| fitted(8, 64, called)), [8, 8, 16]);
        assert_eq!((fitted(64, 64, (1, 3)), fitted(16, 64, (1, 3))), (64, 32));
        assert_eq!((fitted(1, 1, (2, 2)), fitted(1, 1, (1, 1))), (1, 1));
    }
}
