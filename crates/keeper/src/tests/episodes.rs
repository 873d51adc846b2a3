//! What guests read in episodes, whoever tells of what they do.

use super::episode::{Episode, FIRST, LIMIT_MAX_PAGES, STEPS, TELLING, USUAL};
use super::twin::{Habits, PLACE, Telling};
use overspill_agent::Barrier;
use overspill_base::Bytes;
use overspill_device::faulty::Faults;
use overspill_guest::Vpn;
use overspill_guest::map::Extent;
use overspill_guest::userfault::{Fault, Userfault};
use overspill_mutate::seeds;
use std::time::{Duration, Instant};

/// So many seeds for each who may tell.
fn as_each(count: u64) -> impl Iterator<Item = (Telling, u64)> {
    let with_seeds = move |telling| seeds(count).map(move |seed| (telling, seed));
    TELLING.into_iter().flat_map(with_seeds)
}

#[test]
fn a_guest_reads_what_it_has_written() {
    for seed in seeds(40) {
        let mut episode = Episode::lived(USUAL, seed);
        episode.read_all();
        episode.assert_quiet();
        episode.end();
    }
}

fn a_family_reads_what_it_has_written_as(telling: Telling) {
    let habits = Habits { spaces_max: 6, ends_per_mille: 5, telling, ..USUAL };
    for seed in seeds(40) {
        let mut episode = Episode::lived(habits, seed);
        episode.read_all();
        episode.assert_quiet();
        episode.end();
    }
}

#[test]
fn a_family_reads_what_it_has_written() {
    a_family_reads_what_it_has_written_as(Telling::Kernel);
}

/// The kernel tells of no fork, and a child has neither marks nor registrations.
#[test]
fn a_family_that_tells_of_its_forks_reads_what_it_has_written() {
    a_family_reads_what_it_has_written_as(Telling::Letters);
}

/// Touches are signals, and gates tell of all else.
#[test]
fn a_family_without_userfaultfds_reads_what_it_has_written() {
    a_family_reads_what_it_has_written_as(Telling::Signals(Barrier::Guard));
    a_family_reads_what_it_has_written_as(Telling::Signals(Barrier::NoAccess));
}

/// Messages come late: where a child has what its parent was moving is not known then. It is ended
/// if it misses a page of that, but reads no other one.
#[test]
fn who_is_forked_in_the_middle_of_a_move_reads_nothing_else() {
    let habits = Habits { spaces_max: 6, moves_at_forks: true, ..USUAL };
    for seed in seeds(40) {
        let mut episode = Episode::lived(habits, seed);
        episode.read_all();
        episode.assert_says_only("is out, and lost");
        episode.end();
    }
}

#[test]
fn a_limit_changes_while_guests_go_on() {
    for (telling, seed) in as_each(10) {
        let mut episode = Episode::new(Habits { spaces_max: 3, telling, ..USUAL }, seed);
        for step in 0..STEPS {
            episode.step();
            if step % 200 == 0 {
                episode.change_limit();
            }
        }
        episode.read_all();
        episode.assert_quiet();
        episode.end();
    }
}

/// Who touches what cannot be read is ended, and nobody reads anything else.
#[test]
fn what_a_device_loses_nobody_reads() {
    for (telling, seed) in as_each(10) {
        let mut episode = Episode::new(Habits { spaces_max: 4, telling, ..USUAL }, seed);
        episode.plan.set(Faults { seed, read_failures_per_mille: 5, ..Faults::default() });
        (0..STEPS).for_each(|_| episode.step());
        episode.plan.set(Faults::default());
        episode.read_all();
        episode.end();
    }
}

/// It would be taken for new together with its neighbour, and read as zeros.
#[test]
fn a_mark_that_nobody_knows_of_is_a_lost_page() {
    let mut episode = Episode::new(Habits { threads: 1, ..USUAL }, 0);
    episode.world.calm();
    let guest = episode.shared.guest(FIRST).unwrap();
    episode.steps_until(|_| guest.hold().map.believed().next().is_some());
    episode.world.twin(0).mark(&PLACE.start.plus(1).run(1)).unwrap();
    episode.world.touch(PLACE.start);
    episode.steps_until(|this| this.world.is_calm());
    episode.assert_quiet();
    episode.world.touch(PLACE.start.plus(1));
    episode.steps_until(|this| this.world.is_calm());
    assert!(episode.lines.lock().unwrap()[0].ends_with("is out, and lost"));
    assert!(guest.is_over());
}

/// Nothing is known any more of what it has: it is ended, and said to be. The others go on.
#[test]
fn who_has_no_agent_any_more_is_ended() {
    for (telling, seed) in as_each(10) {
        let mut episode = Episode::lived(Habits { spaces_max: 3, telling, ..USUAL }, seed);
        episode.world.twin(0).lose_agent();
        episode.steps_until(|this| this.world.twin(0).has_ended());
        episode.read_all();
        let lines = episode.lines.lock().unwrap().clone();
        assert!(lines.iter().any(|line| line.starts_with("process 1 is ended")), "{lines:?}");
        episode.end();
    }
}

/// What was brought back is not paged any more, and what comes of it neither.
#[test]
fn a_guest_that_is_let_go_has_all_its_pages() {
    for (telling, seed) in as_each(15) {
        let mut episode = Episode::lived(Habits { telling, ..USUAL }, seed);
        episode.shared.set_limit(Bytes::of_pages(LIMIT_MAX_PAGES));
        while episode.shared.guest(FIRST).is_some() {
            episode.let_go(FIRST);
        }
        assert!(episode.shared.all_guests().is_empty() && episode.world.twin(0).is_free());
        episode.read_all();
        episode.assert_quiet();
    }
}

/// Who lets go is also who attaches to children, which may have all frames before that.
#[test]
fn who_is_let_go_waits_for_no_frames() {
    for seed in seeds(3) {
        let mut episode = Episode::new(Habits { spaces_max: 6, ..USUAL }, seed);
        (0..STEPS).for_each(|_| episode.step());
        let writes_fail = Faults { write_failures_per_mille: 1000, ..Faults::default() };
        episode.plan.set(writes_fail);
        episode.shared.set_limit(Bytes::of_pages(1));
        let begun = Instant::now();
        assert!(!episode.stand_still_and_go(FIRST));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        episode.shared.set_limit(Bytes::of_pages(LIMIT_MAX_PAGES));
        while episode.shared.guest(FIRST).is_some() {
            episode.let_go(FIRST);
        }
    }
}

/// Whoever serves its faults goes on with those of others.
#[test]
fn a_fault_of_who_has_ended_is_over() {
    for telling in TELLING {
        let mut episode = Episode::lived(Habits { telling, ..USUAL }, 0);
        let guest = episode.shared.guest(FIRST).unwrap();
        let mut owned = guest.hold();
        let runs: Vec<Extent> = owned.map.bound(PLACE).collect();
        let pages = runs.iter().flat_map(|run| Vpn::each(&run.place()).collect::<Vec<_>>());
        owned.waiting.extend(pages.map(|at| Fault { at, thread: 0 }));
        drop(owned);
        episode.world.end_all();
        guest.ended();
        episode.shared.settle(&mut episode.worker, &guest);
    }
}
