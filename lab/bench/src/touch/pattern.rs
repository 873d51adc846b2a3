//! Which page is touched next.
//!
//! Owns: the patterns, in pmbench's terms where it has them.
//! Invariants: a page is below the number of pages; the same seed gives the same pages.
//! Not here: what is done to the page. Threads do not share a pattern.
//! Source: pmbench 0.9 for uniform, linear, normal and pareto; Gray et al., "Quickly generating
//! billion-record synthetic databases", for zipf, which YCSB uses with the exponent 0.99.

use std::f64::consts::TAU;

/// A rule for the sequence of pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pattern {
    /// Any, with equal probability.
    Uniform,
    /// Around the middle; values beyond the ends become the middle.
    Normal {
        /// The standard deviation.
        pages: f64,
    },
    /// Every n-th page, then the same from the next page on: 0 3 6 1 4 7 2 5 8.
    Linear {
        /// From one page to the next.
        stride: usize,
    },
    /// The first pages most often: with 1.161, four fifths of the touches go to a fifth of them.
    Pareto {
        /// The exponent.
        alpha: f64,
    },
    /// The page of rank n is touched in proportion to 1/n^exponent; ranks are not in page order.
    Zipf {
        /// At least 0, below 1.
        exponent: f64,
    },
    /// Seven touches of eight go anywhere in the first eighth of the pages, the eighth goes to the
    /// next page of the rest, in order.
    HotScan,
}

/// A share of pages, and of touches, in [`Pattern::HotScan`].
const EIGHTH: usize = 8;

/// A pattern being followed.
pub(crate) struct Walk {
    pattern: Pattern,
    pages: usize,
    random: fastrand::Rng,
    /// Sequential touches so far.
    at: usize,
    zipf: ZipfSums,
}

impl Walk {
    /// Follows `pattern` over `pages`, at least [`EIGHTH`]; `seed` determines a random start.
    pub(crate) fn new(pattern: Pattern, pages: usize, seed: u64) -> Self {
        let zipf = match pattern {
            Pattern::Zipf { exponent } => ZipfSums::new(exponent, pages),
            _ => ZipfSums::default(),
        };
        Self { pattern, pages, random: fastrand::Rng::with_seed(seed), at: 0, zipf }
    }

    /// Returns a random number below `n`, from the same source as the pages.
    pub(crate) fn any(&mut self, n: usize) -> usize {
        self.random.usize(..n)
    }

    /// Returns the next page.
    pub(crate) fn next(&mut self) -> usize {
        match self.pattern {
            Pattern::Uniform => self.any(self.pages),
            Pattern::Normal { pages } => self.normal(pages),
            Pattern::Linear { stride } => self.linear(stride),
            Pattern::Pareto { alpha } => self.pareto(alpha),
            Pattern::Zipf { exponent } => self.zipf(exponent),
            Pattern::HotScan => self.hot_scan(),
        }
    }

    /// Box-Muller transform.
    fn normal(&mut self, deviation: f64) -> usize {
        let (u, v) = (1.0 - self.random.f64(), self.random.f64());
        let page = self.pages as f64 / 2.0 + deviation * (-2.0 * u.ln()).sqrt() * (TAU * v).cos();
        if (0.0..self.pages as f64).contains(&page) { page as usize } else { self.pages / 2 }
    }

    fn linear(&mut self, stride: usize) -> usize {
        let page = self.at;
        self.at = match page + stride {
            next if next < self.pages => next,
            // The next round starts a page further on; after the last one all starts again.
            _ => (page % stride + 1) % stride.min(self.pages),
        };
        page
    }

    fn pareto(&mut self, alpha: f64) -> usize {
        let tail = 1.0 - (self.pages as f64).powf(-alpha);
        let page = (1.0 - self.random.f64() * tail).powf(-1.0 / alpha) - 1.0;
        (page as usize).min(self.pages - 1)
    }

    fn zipf(&mut self, exponent: f64) -> usize {
        let rank = self.zipf.rank(exponent, self.pages, self.random.f64());
        // A prime above every number of pages, so that each rank has its own page.
        const SCATTER: u64 = 4_294_967_311;
        (rank as u64 * (SCATTER % self.pages as u64) % self.pages as u64) as usize
    }

    fn hot_scan(&mut self) -> usize {
        let hot = self.pages / EIGHTH;
        self.at += 1;
        if !self.at.is_multiple_of(EIGHTH) {
            return self.any(hot);
        }
        hot + (self.at / EIGHTH - 1) % (self.pages - hot)
    }
}

/// Sums that drawing from a Zipf distribution needs.
#[derive(Clone, Copy, Default)]
struct ZipfSums {
    /// Sum of 1/n^exponent over all ranks.
    all: f64,
    eta: f64,
}

impl ZipfSums {
    fn new(exponent: f64, pages: usize) -> Self {
        let sum = |ranks: usize| (1..=ranks).map(|n| (n as f64).powf(-exponent)).sum::<f64>();
        let all = sum(pages);
        let eta = (1.0 - (2.0 / pages as f64).powf(1.0 - exponent)) / (1.0 - sum(2) / all);
        Self { all, eta }
    }

    /// Returns the rank, from 0, for a random `u` in [0, 1).
    fn rank(&self, exponent: f64, pages: usize, u: f64) -> usize {
        let sum = u * self.all;
        if sum < 1.0 {
            return 0;
        }
        if sum < 1.0 + 0.5f64.powf(exponent) {
            return 1;
        }
        let share = (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - exponent));
        ((pages as f64 * share) as usize).min(pages - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 1000;
    const DRAWS: usize = 200_000;

    fn counts(pattern: Pattern) -> Vec<usize> {
        let mut walk = Walk::new(pattern, PAGES, 1);
        let mut counts = vec![0; PAGES];
        (0..DRAWS).for_each(|_| counts[walk.next()] += 1);
        counts
    }

    /// Returns the share of touches that go to `range` of pages.
    fn share(counts: &[usize], range: std::ops::Range<usize>) -> f64 {
        counts[range].iter().sum::<usize>() as f64 / DRAWS as f64
    }

    #[test]
    fn uniform_touches_all_pages_alike() {
        let counts = counts(Pattern::Uniform);
        // 200 each; 6 standard deviations are 85.
        assert!(counts.iter().all(|&n| (115..285).contains(&n)));
    }

    #[test]
    fn normal_has_two_thirds_within_a_deviation() {
        let counts = counts(Pattern::Normal { pages: 100.0 });
        assert!((share(&counts, 400..600) - 0.683).abs() < 0.01);
        assert!((share(&counts, 300..700) - 0.954).abs() < 0.01);
    }

    #[test]
    fn linear_goes_round_by_its_stride() {
        let first = |stride, pages, n| {
            let mut walk = Walk::new(Pattern::Linear { stride }, pages, 0);
            (0..n).map(|_| walk.next()).collect::<Vec<_>>()
        };
        assert_eq!(first(3, 9, 12), [0, 3, 6, 1, 4, 7, 2, 5, 8, 0, 3, 6]);
        assert_eq!(first(1, 8, 9), [0, 1, 2, 3, 4, 5, 6, 7, 0]);
        assert_eq!(first(20, 8, 9), [0, 1, 2, 3, 4, 5, 6, 7, 0]);
    }

    #[test]
    fn pareto_keeps_the_law_of_four_fifths() {
        let counts = counts(Pattern::Pareto { alpha: 1.161 });
        // Bounded: P(page < k) = (1 - (k + 1)^-a) / (1 - n^-a), which at the first page is 0.5529.
        assert!((share(&counts, 0..1) - 0.5529).abs() < 0.01);
        assert!(share(&counts, 0..200) > 0.8);
    }

    #[test]
    fn zipf_is_in_proportion_to_the_rank() {
        let exponent = 0.99;
        let mut counts = counts(Pattern::Zipf { exponent });
        counts.sort_by(|a, b| b.cmp(a));
        let sum = |ranks| (1..=ranks).map(|n| f64::from(n).powf(-exponent)).sum::<f64>();
        for (ranks, tolerance) in [(1, 0.005), (2, 0.005), (100, 0.02), (500, 0.02)] {
            let theory = sum(ranks) / sum(PAGES as i32);
            let drawn = share(&counts, 0..ranks as usize);
            assert!((drawn - theory).abs() < tolerance, "{ranks}: {drawn}, in theory {theory}");
        }
        assert!(counts[PAGES - 1] > 0, "each rank has a page of its own");
    }

    #[test]
    fn scans_pass_a_hot_set() {
        let counts = counts(Pattern::HotScan);
        assert!((share(&counts, 0..125) - 0.875).abs() < 1e-4);
        let rest = &counts[125..];
        assert!(rest.iter().max().unwrap() - rest.iter().min().unwrap() <= 1, "in order");
    }

    #[test]
    fn every_page_is_below_the_number_of_pages() {
        let patterns = [
            Pattern::Uniform,
            Pattern::Normal { pages: 1e6 },
            Pattern::Linear { stride: 5 },
            Pattern::Pareto { alpha: 0.01 },
            Pattern::Zipf { exponent: 0.0 },
            Pattern::HotScan,
        ];
        for pattern in patterns {
            let mut walk = Walk::new(pattern, EIGHTH, 3);
            assert!((0..10_000).all(|_| walk.next() < EIGHTH), "{pattern:?}");
        }
    }
}
