//! Letters, one by one.

use super::episode::{Episode, FIRST, STEPS, USUAL};
use super::pausing::set_others;
use super::twin::{Habits, Telling};
use overspill_agent::Barrier;
use overspill_agent::gate::letter;
use std::cell::Cell;
use std::rc::Rc;

#[test]
fn who_is_about_to_filter_its_calls_is_told_of_once() {
    let mut episode = Episode::new(Habits { telling: Telling::Letters, ..USUAL }, 0);
    episode.read_letters();
    assert_eq!(episode.front.take_wishes(), []);
    episode.world.wish_out();
    (0..2).for_each(|_| episode.read_letters());
    assert_eq!(episode.front.take_wishes(), [FIRST]);
    (0..STEPS).for_each(|_| episode.step());
    episode.read_all();
}

/// Letters of two would tell of them in another order than they were made in.
#[test]
fn a_change_of_memory_waits_for_the_one_before() {
    let habits = Habits { telling: Telling::Signals(Barrier::Guard), ..USUAL };
    let mut episode = Episode::new(habits, 0);
    episode.world.calm();
    let [first, second, fork] = [letter::CHANGE, letter::CHANGE, letter::FORK].map(|kind| {
        let sent = episode.world.send(kind, [0; 4]);
        episode.read_letters();
        sent
    });
    assert_eq!(episode.world.take_answer(first), Some(0));
    let end_one = |episode: &mut Episode| {
        let end = episode.world.send(letter::CHANGED, [0; 4]);
        episode.read_letters();
        episode.steps_until(|this| this.world.take_answer(end) == Some(0));
    };
    assert_eq!([second, fork].map(|sent| episode.world.take_answer(sent)), [None; 2]);
    end_one(&mut episode);
    episode.steps_until(|this| this.world.take_answer(second) == Some(0));
    assert_eq!(episode.world.take_answer(fork), None);
    end_one(&mut episode);
    episode.steps_until(|this| this.world.take_answer(fork) == Some(1));
}

/// Its gate writes again what nobody has answered, or what was answered and not seen.
#[test]
fn who_gets_other_letters_waits_for_nothing_of_before() {
    let habits = Habits { telling: Telling::Signals(Barrier::Guard), ..USUAL };
    for kind in [letter::CHANGE, letter::FORK] {
        let mut episode = Episode::new(habits, 0);
        episode.world.calm();
        (0..2).for_each(|_| _ = episode.world.send(kind, [0; 4]));
        episode.read_letters();
        episode.attach(FIRST, &episode.world.twin(0));
        let again = episode.world.send(kind, [0; 4]);
        episode.read_letters();
        episode.steps_until(|this| this.world.take_answer(again).is_some());
    }
}

/// A fork of which nobody knows would hold all that waits for its end.
#[test]
fn a_letter_of_before_that_is_followed_late_begins_nothing() {
    for telling in [Telling::Letters, Telling::Signals(Barrier::Guard)] {
        for kind in [letter::CHANGE, letter::FORK] {
            let episode = Episode::new(Habits { telling, ..USUAL }, 0);
            episode.world.calm();
            let guest = episode.shared.guest(FIRST).unwrap();
            _ = episode.world.send(kind, [0; 4]);
            let read = guest.letters.lock().as_mut().unwrap().take();
            episode.attach(FIRST, &episode.world.twin(0));
            let again = episode.world.send(kind, [0; 4]);
            let late = guest.letters.lock().as_mut().unwrap().take();
            read.iter().for_each(|letter| episode.shared.follow_letter(&guest, letter));
            assert_eq!(episode.world.take_answer(again), None, "{kind}");
            late.iter().for_each(|letter| episode.shared.follow_letter(&guest, letter));
            assert!(episode.world.take_answer(again).is_some(), "{kind}");
            assert_eq!(guest.hold().is_forking(), kind == letter::FORK);
            guest.hold().end_fork(1);
            assert!(!guest.hold().is_forking(), "there was one");
        }
    }
}

/// The same while it waits for a moment at which nothing is outstanding.
#[test]
fn a_fork_does_not_begin_for_letters_of_before() {
    let came = (0..1000).filter(|seed| comes_while_a_fork_waits(*seed)).take(5);
    assert_eq!(came.count(), 5);
}

/// True if it came to that.
fn comes_while_a_fork_waits(seed: u64) -> bool {
    let habits = Habits { telling: Telling::Letters, interruptions_max: 6, ..USUAL };
    let mut episode = Episode::new(habits, seed);
    (0..STEPS / 10).for_each(|_| episode.step());
    let twin = episode.world.twin(0);
    if !twin.may_attach() {
        return false;
    }
    _ = episode.world.send(letter::FORK, [0; 4]);
    let (shared, world) = (std::sync::Arc::downgrade(&episode.shared), episode.world.clone());
    let has_come = Rc::new(Cell::new(false));
    let comes = has_come.clone();
    set_others(move || {
        let shared = shared.upgrade().unwrap();
        if !comes.replace(true) {
            shared.take_letters(&shared.guest(FIRST).unwrap(), &twin.letters().unwrap()).unwrap();
        }
        world.run_one();
    });
    episode.read_letters();
    if has_come.get() {
        episode.read_all();
    }
    has_come.get()
}

/// A guest may write anything.
#[test]
fn every_letter_has_an_answer() {
    let mut episode = Episode::new(Habits { telling: Telling::Letters, ..USUAL }, 0);
    let (unknown, not_now) = (-i64::from(libc::ENOSYS), -i64::from(libc::EAGAIN));
    let everything = [0, u64::MAX, 7, 0];
    for (kind, arguments, expected) in [
        (99, everything, unknown),
        (letter::FAULT, everything, unknown),
        (letter::LOOK, everything, unknown),
        (letter::CHANGE, everything, unknown),
        (letter::KEPT, everything, 0),
        (letter::OUT, everything, 0),
        // Nobody has asked for such a fork, and there is no such child.
        (letter::FORKED, [77, 0, 0, 0], not_now),
        (letter::BORN, [78, u64::MAX, 3, 0], not_now),
        (letter::BORN, [79, 1, u64::MAX, 0], not_now),
    ] {
        let sent = episode.world.send(kind, arguments);
        episode.read_letters();
        assert_eq!(episode.world.take_answer(sent), Some(expected), "{kind} {arguments:?}");
    }
    let guest = episode.shared.guest(FIRST).unwrap();
    let is_awaited = |fork| guest.letters.lock().as_ref().unwrap().awaits_birth(fork);
    assert!([77, 78, 79].iter().all(|fork| !is_awaited(*fork)), "nothing is kept of them");
    (0..STEPS).for_each(|_| episode.step());
    episode.read_all();
}

/// Each takes memory of the keeper's.
#[test]
fn forks_that_are_asked_for_without_end_are_refused() {
    let mut episode = Episode::new(Habits { telling: Telling::Letters, threads: 1, ..USUAL }, 0);
    episode.world.calm();
    let fork = || {
        let sent = episode.world.send(letter::FORK, [0; 4]);
        episode.read_letters();
        episode.world.take_answer(sent).unwrap()
    };
    let forks: Vec<i64> = (0..2000).map(|_| fork()).collect();
    let refused = forks.iter().filter(|answer| **answer < 0).count();
    assert!(refused > 900, "{refused}");
    for fork in forks.into_iter().filter(|answer| *answer > 0) {
        let sent = episode.world.send(letter::FORKED, [fork as u64, 0, 0, 0]);
        episode.read_letters();
        assert!(episode.world.take_answer(sent).is_some());
    }
    episode.read_all();
}
