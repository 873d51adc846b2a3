//! Giving memory back while others are short of it.
//!
//! Owns: how much of its limit a run may use then, by what the kernel tells of the time that is
//! lost for want of memory (PSI): of this container where it has a file for that (cgroup v2),
//! else of the machine. Waits for pages of a run are none of it, but where the run's swap makes
//! others wait they are: then giving back would not help, and ends at a part of the limit.
//! Not here: who gives (`front`).

use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How often it is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// Part of the time that is lost, in thousandths, from which memory counts as short, and below
/// which it counts as enough again.
const SHORT: u128 = 50;
const ENOUGH: u128 = 10;
/// What is left to a run at least.
const LEAST_PART: u64 = 8;
/// What is taken of what it has at a time, and what it gets again of its limit.
const GIVEN_PART: u64 = 10;
const TAKEN_PART: u64 = 20;

/// Of all that a container sees, and of the machine.
const PLACES: [&str; 2] = ["/sys/fs/cgroup/memory.pressure", "/proc/pressure/memory"];

/// Where the kernel tells how short memory is.
#[derive(Debug)]
pub struct MemoryPressure(File);

impl MemoryPressure {
    /// Opens it.
    ///
    /// # Errors
    /// There is none: the kernel has no CONFIG_PSI, or was started with `psi=0`.
    pub fn open() -> std::io::Result<Self> {
        let [container, machine] = PLACES.map(|place| {
            let pressure = Self(File::open(place)?);
            pressure.lost()?;
            Ok(pressure)
        });
        container.or(machine)
    }

    /// For how long some threads have waited for memory, all in all.
    fn lost(&self) -> Result<Duration, Errno> {
        let mut text = [0; 256];
        let read = self.0.read_at(&mut text, 0);
        let read = read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        std::str::from_utf8(&text[..read]).ok().and_then(parse).ok_or(Errno::PROTO)
    }
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=3024246`, in microseconds.
fn parse(text: &str) -> Option<Duration> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split(' ').find_map(|field| field.strip_prefix("total="))?;
    total.trim_end().parse().ok().map(Duration::from_micros)
}

/// What a run may use.
#[derive(Debug)]
pub(crate) struct Giving {
    pressure: MemoryPressure,
    looked: Instant,
    lost: Duration,
    most_pages: u64,
}

impl Giving {
    pub(crate) fn new(pressure: MemoryPressure) -> Self {
        let lost = pressure.lost().unwrap_or_default();
        Self { pressure, looked: Instant::now(), lost, most_pages: u64::MAX }
    }

    /// What it may use now of a limit.
    pub(crate) fn most_pages(&self, limit_pages: u64) -> u64 {
        self.most_pages.min(limit_pages)
    }

    /// Looks how short memory is, now and then; true if it has just become short.
    pub(crate) fn look(&mut self, held_pages: u64, limit_pages: u64) -> bool {
        let passed = self.looked.elapsed();
        if passed < INTERVAL {
            return false;
        }
        // One that cannot be read is one that does not change.
        let lost = self.pressure.lost().unwrap_or(self.lost);
        let lost_part = lost.saturating_sub(self.lost).as_micros() * 1000 / passed.as_micros();
        (self.looked, self.lost) = (Instant::now(), lost);
        let before_pages = self.most_pages(limit_pages);
        let most_pages = next(before_pages, held_pages, limit_pages, lost_part);
        // A limit that is raised meanwhile is all of it.
        self.most_pages = if most_pages == limit_pages { u64::MAX } else { most_pages };
        before_pages == limit_pages && most_pages < limit_pages
    }
}

fn next(most_pages: u64, held_pages: u64, limit_pages: u64, lost_part: u128) -> u64 {
    match lost_part {
        SHORT.. => {
            let used_pages = most_pages.min(held_pages);
            let least_pages = (limit_pages / LEAST_PART).min(most_pages);
            (used_pages - used_pages / GIVEN_PART).max(least_pages)
        }
        ..ENOUGH => (most_pages + limit_pages / TAKEN_PART + 1).min(limit_pages),
        _ => most_pages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read() {
        let text =
            "some avg10=0.12 avg60=0.00 avg300=0.00 total=3024246\nfull avg10=0.00 total=7\n";
        assert_eq!(parse(text), Some(Duration::from_micros(3_024_246)));
        assert_eq!(parse("full avg10=0.00 total=7\n"), None);
        match MemoryPressure::open() {
            Ok(pressure) => assert!(pressure.lost().is_ok()),
            Err(error) => println!("skipped: no pressure is told here: {error}"),
        }
    }

    #[test]
    fn a_run_gives_back_down_to_a_part_and_gets_all_again() {
        let (limit, mut most) = (8000, 8000);
        // From what it has, not from what it may have.
        most = next(most, 2000, limit, 500);
        assert_eq!(most, 1800);
        for _ in 0..100 {
            let less = next(most, most, limit, SHORT);
            assert!(less < most || less == limit / LEAST_PART);
            most = less;
        }
        assert_eq!(next(most, most, limit, ENOUGH), most);
        for _ in 0..TAKEN_PART {
            most = next(most, most, limit, 0);
        }
        assert_eq!(most, limit);
    }

    #[test]
    fn a_run_that_has_little_keeps_it() {
        assert_eq!(next(8000, 10, 8000, 999), 1000);
    }
}
