//! Letters, one by one.

use super::episode::{Episode, FIRST, STEPS, USUAL};
use super::twin::{Habits, Telling};
use overspill_agent::Barrier;
use overspill_agent::gate::letter;

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
