//! Which limits would have done.
//!
//! Owns: what people are told of it. With as much as was ever in use nothing is swapped; where half
//! of the pages come back that did, it waits about half as long.
//! Known errors: docs/prediction.md measures them. What a program has between two looks, of a
//! millisecond or more, is not seen unless it is paged.
//! Not here: how many pages come back with more memory ([`Summary::refaults_left`]), wording
//! (`report`).

use overspill::{Bytes, MEMORY_MIN, Summary};
use serde::Serialize;

/// Watermarks, and what is not known exactly.
const MARGIN_PART: u64 = 16;
/// So much waiting, as a part of the run, is worth a thought.
const WORTH: f64 = 0.01;

/// Limits that would have done, for a run with the same one all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Enough {
    /// With this nothing would be swapped.
    pub(super) enough_bytes: u64,
    /// With this it would wait about half as long. Not where it hardly waits, nor if this is about
    /// as much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) half_wait_bytes: Option<u64>,
}

impl Enough {
    /// Of a run that has had `in_use` at most, and waited for a `part` of its time.
    pub(super) fn of(summary: &Summary, in_use: Bytes, part: f64) -> Self {
        let enough_bytes = round_up(in_use.0 + in_use.0 / MARGIN_PART).max(MEMORY_MIN.0);
        let half = half_wait(summary).map(|Bytes(half)| half);
        let is_worth_it = |&half: &u64| part >= WORTH && half < enough_bytes;
        Self { enough_bytes, half_wait_bytes: half.filter(is_worth_it) }
    }
}

/// The limit with which half of the pages would come back that did, if any have.
pub(super) fn half_wait(summary: &Summary) -> Option<Bytes> {
    let left = &summary.refaults_left;
    let all = left.first()?.1;
    let &(more, _) = left.iter().find(|&&(_, left)| 2 * left <= all)?;
    Some(Bytes(round_up(summary.memory_bytes + more)))
}

/// To what is printed as that, and not as less.
pub(super) fn round_up(bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    let unit = match bytes {
        GIB.. => GIB / 10 + 1,
        bytes if bytes >= 16 * MIB => MIB,
        MIB.. => MIB / 10 + 1,
        _ => 4096,
    };
    bytes.next_multiple_of(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn summary(left: &[(u64, u64)]) -> Summary {
        let refaults_left = left.to_vec();
        Summary { memory_bytes: 64 * MIB, refaults_left, ..Summary::default() }
    }

    #[test]
    fn half_of_what_came_back_would_have_stayed() {
        let left = [(0, 120), (16 * MIB, 61), (32 * MIB, 60), (60 * MIB, 0)];
        let enough = |part| Enough::of(&summary(&left), Bytes(160 * MIB), part);
        let expected = Enough { enough_bytes: 170 * MIB, half_wait_bytes: Some(96 * MIB) };
        assert_eq!(enough(0.3), expected);
        assert_eq!(enough(0.001).half_wait_bytes, None);
    }

    #[test]
    fn half_is_said_only_if_it_is_less() {
        let near = Enough::of(&summary(&[(0, 9), (4 * MIB, 0)]), Bytes(63 * MIB), 0.5);
        assert_eq!(near, Enough { enough_bytes: 67 * MIB, half_wait_bytes: None });
        let nothing = Enough::of(&summary(&[]), Bytes(0), 0.0);
        assert_eq!(nothing, Enough { enough_bytes: MEMORY_MIN.0, half_wait_bytes: None });
    }

    #[test]
    fn limits_are_round() {
        for bytes in [1, MIB, MIB + 1, 99 * MIB + 1, 1074 * MIB, 5000 * MIB] {
            let printed = format!("{:#}", Bytes(round_up(bytes)));
            let given = overspill::parse_bytes(&printed).unwrap().0;
            let most = bytes + bytes / 9 + 4096;
            assert!((bytes.saturating_sub(4096)..=most).contains(&given), "{printed} for {bytes}");
        }
    }
}
