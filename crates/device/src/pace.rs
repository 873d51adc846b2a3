//! How fast a device is, and how much must be asked of it at a time.
//!
//! Owns: the lowest latency of requests that found nothing else under way, the highest rate at
//! which pages came lately, and what follows from both: the pages that must be under way so that
//! the device never waits for the next request.
//! Invariants: nothing is assumed of a device before it has been measured. Latency is not that of
//! requests behind others, or it would grow with what is asked, and what is asked with it.
//! Source: the model of BBR (Cardwell and others, "BBR: Congestion-Based Congestion Control", ACM
//! Queue 14:5, 2016): rate by what was delivered while a request was under way, twice the product
//! of rate and latency, so that a device that could do more shows it.
//! Not here: who keeps to it.

use overspill_base::Slot;

/// Requests after which a latency is believed: on a busy machine the first are late everywhere.
const SURE_REQUESTS: u32 = 8;
/// Weight of a higher latency than the lowest: little, because often the end of a request was
/// noticed late.
const LATENCY_WEIGHT: f64 = 1.0 / 1024.0;
/// Of a lower rate than the highest: often the device was not asked for more.
const RATE_WEIGHT: f64 = 1.0 / 64.0;
/// More than what keeps the device busy: so much that a higher rate can be seen.
const GAIN: f64 = 2.0;

/// A device's pace, as far as it is known.
#[derive(Debug, Default)]
pub struct Pace {
    /// The lowest lately of requests that found nothing else under way, and how many there were.
    latency_ns: f64,
    alone: u32,
    /// The highest lately.
    pages_per_ns: f64,
    /// Pages that have come so far.
    delivered: u64,
    flights: Vec<Flight>,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    slot: Slot,
    since_ns: u64,
    /// What had come before it was made.
    delivered: u64,
    is_alone: bool,
}

impl Pace {
    /// The pace of a device of which nothing is known. So many requests are noted at a time, and
    /// none allocates: it may be made in a signal handler.
    pub fn unknown(requests: usize) -> Self {
        Self { flights: Vec::with_capacity(requests), ..Self::default() }
    }

    /// Notes that the request that begins at `slot` was made. Nothing else under way begins there.
    pub fn begin(&mut self, slot: Slot, now_ns: u64) {
        let (delivered, is_alone) = (self.delivered, self.flights.is_empty());
        if self.flights.len() == self.flights.capacity() {
            return;
        }
        self.flights.push(Flight { slot, since_ns: now_ns, delivered, is_alone });
    }

    /// Notes that the request that begins at `slot`, of `pages` pages, has ended.
    pub fn end(&mut self, slot: Slot, pages: usize, now_ns: u64) {
        let Some(index) = self.flights.iter().position(|flight| flight.slot == slot) else {
            return;
        };
        let flight = self.flights.swap_remove(index);
        self.delivered += pages as u64;
        let took_ns = now_ns.saturating_sub(flight.since_ns).max(1) as f64;
        let rate = (self.delivered - flight.delivered) as f64 / took_ns;
        self.pages_per_ns = rate.max(weighed(self.pages_per_ns, rate, RATE_WEIGHT));
        if flight.is_alone {
            let lower = weighed(self.latency_ns, took_ns, LATENCY_WEIGHT);
            self.latency_ns = if self.alone == 0 { took_ns } else { took_ns.min(lower) };
            self.alone = self.alone.saturating_add(1);
        }
    }

    /// Returns how long a request takes when nothing else is under way, once it is sure.
    pub fn latency_ns(&self) -> Option<u64> {
        (self.alone >= SURE_REQUESTS).then_some(self.latency_ns as u64)
    }

    /// Returns the highest rate at which pages came lately.
    pub fn pages_per_s(&self) -> u64 {
        (self.pages_per_ns * 1e9) as u64
    }
}

/// Returns the pages that should be under way at a device with this latency and this rate.
pub fn window_pages(latency_ns: u64, pages_per_s: u64) -> usize {
    (GAIN * latency_ns as f64 * pages_per_s as f64 / 1e9) as usize
}

/// Moves `value` towards a sample.
fn weighed(value: f64, sample: f64, weight: f64) -> f64 {
    value + (sample - value) * weight
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn window_of(pace: &Pace) -> usize {
        window_pages(pace.latency_ns().unwrap_or(0), pace.pages_per_s())
    }

    /// Makes requests that find nothing else under way.
    fn take(pace: &mut Pace, requests: u32, pages: usize, took_ns: u64) {
        for _ in 0..requests {
            pace.begin(Slot(1), 0);
            pace.end(Slot(1), pages, took_ns);
        }
    }

    /// Keeps as many pages under way as the pace says, in requests of 64, for a while; returns what
    /// it says then. The device takes `latency_ns`, and `page_ns` for each page.
    fn learned(latency_ns: u64, page_ns: u64) -> usize {
        let mut pace = Pace::unknown(256);
        let (mut now_ns, mut free_ns, mut slot) = (0, 0, 0);
        let mut flying: VecDeque<(u32, u64)> = VecDeque::new();
        for _ in 0..4000 {
            while flying.len() * 64 < window_of(&pace).max(64) {
                pace.begin(Slot(slot), now_ns);
                free_ns = now_ns.max(free_ns) + 64 * page_ns;
                flying.push_back((slot, free_ns + latency_ns));
                slot += 64;
            }
            let (first, at_ns) = flying.pop_front().unwrap();
            now_ns = now_ns.max(at_ns);
            pace.end(Slot(first), 64, now_ns);
        }
        window_of(&pace)
    }

    #[test]
    fn it_says_twice_what_keeps_a_device_busy() {
        // 250 000 pages a second with 5 ms: 1250 pages; with 100 us: 25, and a request is 64.
        assert!((2000..3200).contains(&learned(5_000_000, 4_000)), "{}", learned(5_000_000, 4_000));
        assert!((64..260).contains(&learned(100_000, 4_000)), "{}", learned(100_000, 4_000));
        // 3000 pages a second with 5 ms: what is asked beyond that would only wait.
        assert!((64..200).contains(&learned(5_000_000, 333_000)));
    }

    #[test]
    fn a_latency_is_the_lowest_of_several() {
        let mut pace = Pace::unknown(256);
        take(&mut pace, SURE_REQUESTS - 1, 64, 5_000_000);
        assert_eq!(pace.latency_ns(), None, "the first are late everywhere");
        take(&mut pace, 1, 4, 100_000);
        assert_eq!(pace.latency_ns(), Some(100_000));
        take(&mut pace, 1, 64, 1_124_000);
        assert_eq!(pace.latency_ns(), Some(101_000));
    }

    #[test]
    fn requests_behind_others_say_nothing_of_latency() {
        let mut pace = Pace::unknown(256);
        take(&mut pace, SURE_REQUESTS, 1, 1_000_000);
        pace.begin(Slot(1), 0);
        pace.begin(Slot(2), 0);
        pace.end(Slot(1), 1, 1_000_000);
        pace.end(Slot(2), 1, 50_000_000);
        assert_eq!(pace.latency_ns(), Some(1_000_000));
        // Nobody asked for that.
        pace.end(Slot(7), 1, 60_000_000);
        assert_eq!(pace.delivered, u64::from(SURE_REQUESTS) + 2);
    }

    #[test]
    fn more_requests_than_it_has_room_for_are_not_noted() {
        let mut pace = Pace::unknown(2);
        let room = pace.flights.capacity();
        (0..100).for_each(|slot| pace.begin(Slot(slot), 0));
        assert_eq!((pace.flights.len(), pace.flights.capacity()), (room, room));
        (0..100).for_each(|slot| pace.end(Slot(slot), 1, 10));
        assert_eq!(pace.delivered, room as u64);
    }
}
