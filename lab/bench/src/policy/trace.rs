//! Traces: which pages a program touches, in what order.
//!
//! Owns: the workloads.
//! Invariants: a trace depends only on its name, the size of memory and its length, so every policy
//! sees the same one, on every machine. Each begins by filling all of its pages in order, as
//! programs do; that and a quarter of the rest are not counted.
//! Not here: content, and time. A repeated touch of the same page means nothing to any policy, so a
//! sequential reader touches each page once.

use overspill_base::PageNo;
use std::ops::Range;

/// A kind of trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// A short description.
    pub(crate) about: &'static str,
    /// Pages it touches, in hundredths of memory.
    set_percent: usize,
    touches: Touches,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Touches {
    Uniform,
    Zipf,
    InOrder,
    /// Random pages of the hot set, and at times a scan of all others in order: this many touches
    /// of the hot set for each page of a scan.
    HotWithScans {
        between: u32,
    },
    /// An array of half of memory in order, over and over, alternating with random pages of the
    /// rest.
    ArrayAndRandom,
}

/// All of them, in the order of the report.
pub(crate) const WORKLOADS: [Workload; 8] = [
    Workload {
        name: "uniform",
        about: "random pages of four times memory",
        set_percent: 400,
        touches: Touches::Uniform,
    },
    Workload {
        name: "zipf",
        about: "zipf 0.99 over four times memory",
        set_percent: 400,
        touches: Touches::Zipf,
    },
    Workload {
        name: "hot+scan",
        about: "a hot set of half of memory, at work during scans of twice memory",
        set_percent: 250,
        touches: Touches::HotWithScans { between: 1 },
    },
    Workload {
        name: "hot,scan",
        about: "a hot set of half of memory, idle during scans of twice memory",
        set_percent: 250,
        touches: Touches::HotWithScans { between: 0 },
    },
    Workload {
        name: "array",
        about: "in order through half of memory, at every other touch a random page of four times memory",
        set_percent: 450,
        touches: Touches::ArrayAndRandom,
    },
    Workload {
        name: "loop-1.1",
        about: "in order, over and over, through 1.1 times memory",
        set_percent: 110,
        touches: Touches::InOrder,
    },
    Workload {
        name: "loop-1.5",
        about: "in order, over and over, through 1.5 times memory",
        set_percent: 150,
        touches: Touches::InOrder,
    },
    Workload {
        name: "sequential",
        about: "in order, over and over, through four times memory",
        set_percent: 400,
        touches: Touches::InOrder,
    },
];

/// The exponent that YCSB made common.
const ZIPF_EXPONENT: f64 = 0.99;
/// Touches of a hot page between two scans, on average.
const HOT_TOUCHES: u32 = 4;
const SEED: u64 = 99;

/// Touches in order.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    /// Pages that are touched: 0 up to this.
    pub(crate) set_pages: usize,
    pub(crate) touches: Vec<PageNo>,
    /// The first touch that counts.
    pub(crate) counted_from: usize,
    /// The pages a scan should leave in memory; none if there are no scans.
    pub(crate) hot: Range<u32>,
    /// Counts of touches after which a scan has just ended.
    pub(crate) scan_ends: Vec<usize>,
}

impl Workload {
    /// Returns the pages it touches with `memory_pages` of memory.
    pub(crate) fn set_pages(&self, memory_pages: usize) -> usize {
        memory_pages * self.set_percent / 100
    }

    /// Makes the trace for `memory_pages` of memory: all pages once, then `touches` touches.
    pub(crate) fn trace(&self, memory_pages: usize, touches: usize) -> Trace {
        let set_pages = self.set_pages(memory_pages);
        let pages = set_pages as u32;
        let mut trace = Trace {
            set_pages,
            touches: (0..pages).map(PageNo).collect(),
            counted_from: set_pages + touches / 4,
            hot: 0..0,
            scan_ends: Vec::new(),
        };
        let mut random = fastrand::Rng::with_seed(SEED);
        match self.touches {
            Touches::Uniform => {
                trace.touches.extend((0..touches).map(|_| PageNo(random.u32(..pages))));
            }
            Touches::Zipf => {
                let zipf = Zipf::new(pages, &mut random);
                trace.touches.extend((0..touches).map(|_| zipf.draw(&mut random)));
            }
            Touches::InOrder => {
                trace.touches.extend((0..pages).cycle().take(touches).map(PageNo));
            }
            Touches::ArrayAndRandom => {
                let array = memory_pages as u32 / 2;
                let pair = |n| [PageNo(n), PageNo(random.u32(array..pages))];
                trace.touches.extend((0..array).cycle().flat_map(pair).take(touches));
            }
            Touches::HotWithScans { between } => {
                trace.hot = 0..memory_pages as u32 / 2;
                trace.hot_with_scans(between, set_pages + touches, &mut random);
            }
        }
        trace
    }
}

impl Trace {
    fn hot_with_scans(&mut self, between: u32, until: usize, random: &mut fastrand::Rng) {
        let hot = self.hot.clone();
        let mut some_hot = |touches: &mut Vec<PageNo>, n: u32| {
            touches.extend((0..n).map(|_| PageNo(random.u32(hot.clone()))));
        };
        while self.touches.len() < until {
            some_hot(&mut self.touches, HOT_TOUCHES * hot.end);
            for page in hot.end..self.set_pages as u32 {
                self.touches.push(PageNo(page));
                some_hot(&mut self.touches, between);
            }
            self.scan_ends.push(self.touches.len());
        }
    }
}

/// Pages whose probabilities fall with a power of their rank. Ranks are scattered over the pages: a
/// program's hot pages are not adjacent.
struct Zipf {
    /// For each rank, the sum of the weights up to it.
    sums: Vec<f64>,
    page_of_rank: Vec<u32>,
}

impl Zipf {
    fn new(pages: u32, random: &mut fastrand::Rng) -> Self {
        let mut page_of_rank: Vec<u32> = (0..pages).collect();
        random.shuffle(&mut page_of_rank);
        let add = |sum: &mut f64, rank: u32| {
            *sum += f64::from(rank).powf(-ZIPF_EXPONENT);
            Some(*sum)
        };
        Self { sums: (1..=pages).scan(0.0, add).collect(), page_of_rank }
    }

    fn draw(&self, random: &mut fastrand::Rng) -> PageNo {
        let at = random.f64() * self.sums[self.sums.len() - 1];
        let rank = self.sums.partition_point(|&sum| sum <= at);
        PageNo(self.page_of_rank[rank])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(name: &str, memory_pages: usize, touches: usize) -> Trace {
        let workload = WORKLOADS.iter().find(|workload| workload.name == name).unwrap();
        workload.trace(memory_pages, touches)
    }

    /// How often each page is touched after it was filled, in descending order.
    fn frequencies(trace: &Trace) -> Vec<usize> {
        let mut counts = vec![0; trace.set_pages];
        trace.touches[trace.set_pages..].iter().for_each(|page| counts[page.index()] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn every_trace_fills_its_pages_first_and_is_the_same_each_time() {
        for workload in WORKLOADS {
            let trace = workload.trace(64, 1000);
            let filled: Vec<PageNo> = (0..trace.set_pages as u32).map(PageNo).collect();
            assert_eq!(trace.touches[..trace.set_pages], filled);
            assert!(trace.touches.len() >= trace.set_pages + 1000, "{}", workload.name);
            assert!(trace.touches.iter().all(|page| page.index() < trace.set_pages));
            assert_eq!(trace.touches, workload.trace(64, 1000).touches);
        }
    }

    #[test]
    fn uniform_touches_are_spread_evenly() {
        // 256 pages, a thousand touches each: the standard deviation is 32.
        let counts = frequencies(&trace("uniform", 64, 256_000));
        assert!(counts[0] < 1160 && counts[255] > 840, "{} to {}", counts[0], counts[255]);
    }

    #[test]
    fn zipf_touches_fall_with_the_rank() {
        let (pages, touches) = (400, 1_000_000);
        let counts = frequencies(&trace("zipf", 100, touches));
        let sum: f64 = (1..=pages).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for rank in [1, 2, 10, 100] {
            let expected = touches as f64 * f64::from(rank).powf(-0.99) / sum;
            let found = counts[rank as usize - 1] as f64;
            // Six standard deviations of a Poisson count.
            let off = (found - expected).abs();
            assert!(off < 6.0 * expected.sqrt(), "rank {rank}: {found} for {expected}");
        }
    }

    #[test]
    fn a_scan_touches_every_cold_page_in_order_and_ends_where_it_is_said_to() {
        for (name, step) in [("hot,scan", 1), ("hot+scan", 2)] {
            let trace = trace(name, 64, 2000);
            assert_eq!(trace.hot, 0..32);
            let scanned = 128;
            for &end in &trace.scan_ends {
                let scan = trace.touches[end - scanned * step..end].iter().step_by(step);
                let cold: Vec<PageNo> = (32..160).map(PageNo).collect();
                assert_eq!(scan.copied().collect::<Vec<_>>(), cold);
            }
            assert!(trace.scan_ends.len() > 3);
        }
    }

    #[test]
    fn an_array_is_read_in_order_between_random_touches() {
        let trace = trace("array", 64, 200);
        let (array, random): (Vec<_>, Vec<_>) =
            trace.touches[trace.set_pages..].chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip();
        let in_order: Vec<PageNo> = (0..32).cycle().take(100).map(PageNo).collect();
        assert_eq!(array, in_order);
        assert!(random.iter().all(|page| (32..288).contains(&page.0)));
    }

    #[test]
    fn loops_go_round() {
        let trace = trace("loop-1.1", 100, 330);
        let last = &trace.touches[trace.touches.len() - 110..];
        assert!(last.windows(2).all(|pair| pair[1] == pair[0].plus(1)));
        assert_eq!(frequencies(&trace), vec![3; 110]);
    }
}
