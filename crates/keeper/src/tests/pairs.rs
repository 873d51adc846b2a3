//! Every order of two calls of a keeper, whoever tells of what its guests do.
//!
//! Invariants: after any two all that live read what they have written, and when all have ended
//! nothing is left.

use super::episode::{Episode, FIRST, LIMIT_MAX_PAGES, TELLING, USUAL};
use super::twin::Habits;
use overspill_base::Bytes;
use overspill_guest::Vpn;

/// What a keeper is called for, by its front or one of its threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Bring,
    Stay,
    LetGo,
    Ended,
    Kill,
    LittleMemory,
    MuchMemory,
    LoseAgent,
    Attach,
    Fetched,
    Letters,
    Survey,
    Settle,
    Care,
    Reclaim,
}

const CALLS: [Call; 15] = [
    Call::Bring,
    Call::Stay,
    Call::LetGo,
    Call::Ended,
    Call::Kill,
    Call::LittleMemory,
    Call::MuchMemory,
    Call::LoseAgent,
    Call::Attach,
    Call::Fetched,
    Call::Letters,
    Call::Survey,
    Call::Settle,
    Call::Care,
    Call::Reclaim,
];
/// Steps before the first, and between the two.
const BEFORE: u32 = 200;
const BETWEEN: u32 = 10;

impl Call {
    /// Calls, where the guest is still there.
    fn call(self, episode: &mut Episode) {
        let Some(guest) = episode.shared.guest(FIRST) else { return };
        match self {
            // Who has ended says so.
            Self::Bring => {
                let worker = &mut episode.worker;
                let _ = episode.shared.bring_some(worker, FIRST, Vpn(0));
            }
            Self::Stay => episode.shared.stay(&guest),
            Self::LetGo => {
                // It is waited for until nobody has it.
                drop(guest);
                let _ = episode.try_to_let_go(FIRST);
            }
            Self::Ended => {
                episode.front.twin(FIRST).end();
                guest.ended();
            }
            Self::Kill => guest.kill(),
            Self::LittleMemory => episode.shared.set_limit(Bytes::of_pages(20)),
            Self::MuchMemory => episode.shared.set_limit(Bytes::of_pages(LIMIT_MAX_PAGES)),
            Self::LoseAgent => episode.front.twin(FIRST).lose_agent(),
            Self::Attach => episode.attach_a_child(),
            Self::Fetched => episode.shared.fetched(FIRST, 1, None),
            Self::Letters => episode.read_letters(),
            Self::Survey => _ = episode.shared.survey(&guest),
            Self::Settle => episode.shared.settle(&mut episode.worker, &guest),
            Self::Care => episode.shared.care_for_one(&mut episode.worker, &guest),
            Self::Reclaim => episode.reclaim(),
        }
    }
}

#[test]
fn two_calls_may_come_in_any_order() {
    for telling in TELLING {
        for (first, second) in CALLS.into_iter().flat_map(|first| CALLS.map(|it| (first, it))) {
            let seed = first as u64 * 100 + second as u64;
            let mut episode = Episode::new(Habits { spaces_max: 3, telling, ..USUAL }, seed);
            (0..BEFORE).for_each(|_| episode.step());
            first.call(&mut episode);
            (0..BETWEEN).for_each(|_| episode.step());
            second.call(&mut episode);
            episode.read_all();
            episode.end();
        }
    }
}
