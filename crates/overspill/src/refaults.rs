//! How many pages would still come back with more memory.
//!
//! Owns: the curve that is made of refault distances. A page comes back unless there is more memory
//! than its distance; that is so where the page that was used longest ago leaves first. Two things
//! differ. Of what is read in order, the engine lets what was passed last go first (drop-behind).
//! So of a loop, many pages at one distance, it keeps as much as fits: of what does not fit a part
//! comes back that falls with every page of memory. And it sees no touches of what is in memory, so
//! pages leave in the order of their arrival, and more come back: by how much was measured.
//! Known errors: docs/prediction.md has what is left.

use histogram::Histogram;
use overspill_base::Bytes;

/// Distances that differ by such a part at most are about one.
const NEAR_PART: u64 = 8;
/// Such a part of all pages that come back are many.
const MANY_PART: u64 = 2;
/// Where pages left in the order of their use a part would come back; in the order of their arrival
/// the part to this power does, on average of the programs of docs/prediction.md.
const BY_ARRIVAL: f64 = 0.75;
/// The first step of memory, in pages; steps grow by an eighth.
const FIRST_STEP: u64 = 256;

/// Returns pairs of more memory, in bytes, in order, and pages that would have come back with it;
/// empty if none did.
pub(crate) fn left(distances: &Histogram) -> Vec<(u64, u64)> {
    let groups: Vec<Group> = groups_of(distances);
    let Some(farthest) = groups.iter().map(|group| group.distance).max() else { return Vec::new() };
    let steps = std::iter::successors(Some(FIRST_STEP), |step| Some(step + step / NEAR_PART));
    let inner = steps.take_while(|&step| step < farthest);
    let all = std::iter::once(0).chain(inner).chain([farthest + 1]);
    let sum = |more: u64| groups.iter().map(|group| group.left(more)).sum::<f64>();
    let total = sum(0);
    let left = |more: u64| total * (sum(more) / total).powf(BY_ARRIVAL);
    all.map(|more| (Bytes::of_pages(more).0, left(more).round() as u64)).collect()
}

/// Pages that came back from about one distance.
#[derive(Debug)]
struct Group {
    distance: u64,
    pages: u64,
    is_loop: bool,
}

fn groups_of(distances: &Histogram) -> Vec<Group> {
    let found: Vec<(u64, u64)> = distances
        .iter()
        .filter(|bucket| bucket.count() > 0)
        .map(|bucket| (bucket.end(), bucket.count()))
        .collect();
    let sum = |pairs: &mut dyn Iterator<Item = &(u64, u64)>| pairs.map(|pair| pair.1).sum::<u64>();
    let all = sum(&mut found.iter());
    let group = |&(distance, pages): &(u64, u64)| {
        let near = distance - distance / NEAR_PART..=distance + distance / NEAR_PART;
        let around = sum(&mut found.iter().filter(|(other, _)| near.contains(other)));
        Group { distance, pages, is_loop: around * MANY_PART >= all }
    };
    found.iter().map(group).collect()
}

impl Group {
    /// How many of them would still come back with so many more pages of memory.
    fn left(&self, more: u64) -> f64 {
        let pages = self.pages as f64;
        if more > self.distance {
            0.0
        } else if self.is_loop {
            pages * (1.0 - more as f64 / (self.distance + 1) as f64)
        } else {
            pages
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_base::stats::Stats;

    fn curve(distances: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
        let stats = Stats::on_heap();
        distances.into_iter().for_each(|(pages, weight)| stats.refault_distance(pages, weight));
        left(&stats.refault_distances())
    }

    /// What part is left with so many more pages, by the next point of the curve.
    fn part_left(curve: &[(u64, u64)], pages: u64) -> f64 {
        let at = curve.iter().rev().find(|(bytes, _)| *bytes <= Bytes::of_pages(pages).0);
        at.unwrap().1 as f64 / curve[0].1 as f64
    }

    #[test]
    fn pages_from_everywhere_come_back_until_there_is_as_much_memory() {
        let even = curve((0..16_000).map(|page| (page, 1)));
        assert_eq!(even[0], (0, 16_000));
        assert_eq!(even.last().unwrap().1, 0);
        for part in [0.25_f64, 0.5, 0.75] {
            let left = part_left(&even, (16_000.0 * part) as u64);
            let expected = (1.0 - part).powf(BY_ARRIVAL);
            assert!((left - expected).abs() < 0.1, "{left} at {part}");
        }
        assert!(even.is_sorted_by(|a, b| a.0 < b.0 && a.1 >= b.1), "{even:?}");
    }

    #[test]
    fn a_loop_is_kept_as_far_as_it_fits() {
        let looped = curve([(16_000, 40_000)]);
        for part in [0.25_f64, 0.5, 0.75] {
            let left = part_left(&looped, (16_000.0 * part) as u64);
            let expected = (1.0 - part).powf(BY_ARRIVAL);
            assert!((left - expected).abs() < 0.1, "{left} at {part}");
        }
        assert_eq!(looped.last().unwrap().1, 0);
        assert_eq!(curve([]), []);
    }
}
