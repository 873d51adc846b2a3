//! Probes of this system: how touches can be noticed, and whether the kernel reports moves
//! correctly.
//!
//! Owns: a small space for the probe, in which pages are moved there and back while another thread
//! ages and touches them, and the count of moves that the kernel reported as failed although the
//! page had moved.
//! Not here: how this is handled ([`crate::whereabouts`]); the report to the user
//! (`overspill::doctor`).

use crate::guards::Guards;
use crate::mapping::age_and_touch;
use crate::space::{ManagedSpace, SpaceSetupError};
use crate::uffd::{Delivery, Uffd, UffdError};
use crate::words::Reach;
use overspill_base::report::Reports;
use overspill_base::stats::{Event, Stats};
use overspill_base::{Bytes, PAGE_SIZE, PageNo};
use overspill_engine::{AddressSpace, MovingSpace};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Pages aged with one call: with fewer, fewer moves meet the change of a page's entry.
const PAGES: usize = 64;

/// Tries of moving a page back.
const TRIES: usize = 100;

/// The result of the probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovesProbed {
    /// Number of moves.
    pub moves: u64,
    /// Of those, moves reported as failed that had not failed.
    pub misreported: u64,
    /// Pages that were nowhere afterwards. There should be none on any kernel.
    pub lost: u64,
}

/// Moves pages for as long as `limit`, or until the kernel misreports a move.
///
/// # Errors
/// [`SpaceSetupError`].
pub fn probe_moves(limit: Duration, reach: Reach) -> Result<MovesProbed, SpaceSetupError> {
    let space = ManagedSpace::reserve(Bytes(1), PAGE_SIZE, reach)?;
    let stats = Stats::on_heap();
    space.report_to(&stats, &Arc::new(Reports::new(Box::new(|_| {}))));
    // Private pages: the zero page, which all untouched pages share, is not aged.
    space.map(PageNo(0), &vec![1; PAGES * PAGE_SIZE]);
    let stop = AtomicBool::new(false);
    let mut probed = MovesProbed { moves: 0, misreported: 0, lost: 0 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                age_and_touch(space.address_of(PageNo(0)), PAGES);
            }
        });
        let end = Instant::now() + limit;
        while probed.misreported == 0 && Instant::now() < end {
            probed.lost += (0..PAGES).map(|n| move_there_and_back(&space, n)).sum::<u64>();
            probed.moves += 2 * PAGES as u64;
            probed.misreported = stats.get(Event::move_misreported);
        }
        stop.store(true, Relaxed);
    });
    Ok(probed)
}

/// Returns the number of pages lost.
fn move_there_and_back(space: &ManagedSpace, n: usize) -> u64 {
    let (page, away) = (PageNo(n as u32), PageNo((PAGES + n) as u32));
    let is_back = !carry(space, page, away) || (0..TRIES).any(|_| carry(space, away, page));
    if is_back && space.find(page) {
        return 0;
    }
    // The thread that touches it must not sleep for ever.
    space.map(page, &[1; PAGE_SIZE]);
    1
}

/// Moves a page; false if it has stayed.
fn carry(space: &ManagedSpace, from: PageNo, to: PageNo) -> bool {
    space.move_out(space.address_of(to), space.address_of(from), PAGE_SIZE).1.is_none()
}

/// The best way there is here to notice touches.
///
/// # Errors
/// Why there is none.
pub fn best_reach() -> Result<Reach, NoReach> {
    let lack = match Uffd::open(Delivery::Messages, Reach::All) {
        Ok(_) => return Ok(Reach::All),
        Err(lack) => lack,
    };
    if Uffd::open(Delivery::Messages, Reach::Program).is_ok() {
        return Ok(Reach::Program);
    }
    if Guards::probe(false).is_ok() {
        return Ok(Reach::Guards);
    }
    Guards::probe(true).map(|()| Reach::Shut).map_err(|errno| NoReach(lack, errno))
}

/// Touches can be noticed in no way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}; and touches cannot be noticed by signals: /proc/self/mem refuses writes ({1})")]
pub struct NoReach(UffdError, Errno);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Holds on any kernel. If it misreports, the first misreport is usually seen within a tenth of
    /// a second.
    #[test]
    fn no_page_is_lost_that_is_aged_and_touched_while_it_moves() {
        match probe_moves(Duration::from_millis(300), Reach::All) {
            Ok(probed) => {
                println!("{probed:?}");
                assert_eq!(probed.lost, 0, "{probed:?}");
            }
            Err(error) => println!("skipped: {error}"),
        }
    }
}
