//! What `overspill metrics --listen` shows to browsers.
//!
//! Owns: what is remembered of runs ([`Past`]), and which page is at a path.
//! Invariants: runs, and where their memory is, are looked at once a second, however many browsers
//! ask. Arguments, which may be secret, are not shown. A run is believed which processes it
//! has only of its own user's.
//! Not here: the form of the pages (`overspill_report`), and how they are sent (`http`).

use super::http::Page;
use super::seen::Seen;
use crate::run::program::name_of;
use overspill_report::{LiveRun, MemoryMap, RunSample, Samples, live_html, runs_html};
use overspill_run::{Run, residence};
use overspill_terminal::plain;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// Of so many processes, those with the most memory, it is shown where that is.
const MAPS_MAX: usize = 4;
/// Nanoseconds of a second.
const NS: f64 = 1e9;

/// The runs, and what they did since they were first seen.
#[derive(Default)]
pub(super) struct Past(Mutex<BTreeMap<Run, Known>>);

struct Known {
    seen: Seen,
    samples: Samples,
    /// When the next sample is due.
    next: Instant,
    /// Where its memory was, and when.
    maps: Option<(Instant, Vec<MemoryMap>)>,
}

impl Known {
    fn new(seen: Seen) -> Self {
        Self { seen, samples: Samples::new(PERIOD), next: Instant::now(), maps: None }
    }

    fn look(&mut self, seen: Seen) {
        if seen.wall_seconds < self.seen.wall_seconds {
            // Another run has its number.
            *self = Self::new(seen.clone());
        }
        // A look that comes a little early is for this sample, too.
        if Instant::now() + PERIOD / 2 >= self.next {
            self.samples.push(sample(&seen));
            self.next = Instant::now() + self.samples.period();
        }
        self.seen = seen;
    }

    fn live(&self, number: i32) -> LiveRun<'_> {
        LiveRun {
            run: number as u32,
            program: name_of(&self.seen.command),
            limit: self.seen.limit(),
            samples: self.samples.all(),
        }
    }
}

fn sample(seen: &Seen) -> RunSample {
    RunSample {
        seconds: seen.wall_seconds,
        memory_limit_bytes: seen.memory_bytes,
        memory_used_bytes: seen.memory_used_bytes,
        swap_used_bytes: seen.swap_used_bytes(),
        pages_in: seen.summary.pages_in,
        pages_out: seen.summary.pages_out,
        faults: seen.summary.faults,
        fault_ns: seen.summary.fault_latency.sum_ns,
        stall_some_ns: (seen.stall_some_seconds * NS) as u64,
        stall_full_ns: (seen.stall_full_seconds * NS) as u64,
        processes: seen.processes.len(),
    }
}

impl Past {
    /// Remembers how runs are now. Those that have ended are forgotten; who is silent is not.
    pub(super) fn look(&self, runs: Vec<(Run, Seen)>) {
        let mut all = self.all();
        let is_seen = |run: &Run| runs.iter().any(|(other, _)| other == run);
        all.retain(|run, _| is_seen(run) || run.goes_on());
        for (run, seen) in runs {
            all.entry(run).or_insert_with(|| Known::new(seen.clone())).look(seen);
        }
    }

    /// The page at a path, if there is one.
    pub(super) fn page(&self, path: &str) -> Option<Page> {
        let html = match path.strip_prefix("/run/") {
            Some(number) => self.one(number.parse().ok()?)?,
            None if path == "/" => {
                let all = self.all();
                let runs: Vec<_> = all.iter().map(|(run, known)| known.live(run.process)).collect();
                runs_html(&runs)
            }
            None => return None,
        };
        Some(Page { status: "200 OK", kind: "text/html; charset=utf-8", body: html.into() })
    }

    fn one(&self, number: i32) -> Option<String> {
        let (run, seen, maps) = {
            let all = self.all();
            let (run, known) = all.iter().find(|(run, _)| run.process == number)?;
            (*run, known.seen.clone(), known.maps.clone())
        };
        // Page tables may be large: nobody else waits while they are looked at.
        let fresh = maps.filter(|(at, _)| at.elapsed() < PERIOD);
        let maps = fresh.unwrap_or_else(|| (Instant::now(), maps_of(&run, &seen)));
        let mut all = self.all();
        let known = all.get_mut(&run)?;
        let (_, maps) = known.maps.insert(maps).clone();
        Some(live_html(&known.live(number), &maps))
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Run, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the memory of a run is, as far as this process may look.
fn maps_of(run: &Run, seen: &Seen) -> Vec<MemoryMap> {
    let mut processes: Vec<_> = seen.processes.iter().collect();
    processes.sort_by_key(|process| std::cmp::Reverse(process.memory_bytes));
    let own = processes.iter().filter(|it| run.user == 0 || user_of(it.process) == Some(run.user));
    own.take(MAPS_MAX).filter_map(|it| map_of(it.process)).collect()
}

fn user_of(process: i32) -> Option<u32> {
    Some(std::fs::metadata(format!("/proc/{process}")).ok()?.uid())
}

fn map_of(process: i32) -> Option<MemoryMap> {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    let mut map = MemoryMap::new(format!("{} {process}", plain(name.trim_end())));
    residence(process, |run, in_memory| map.note(run, in_memory)).ok()?;
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_mutate::Script;

    fn of_a_test(wall_seconds: f64) -> Known {
        let mut known = Known::new(Seen { wall_seconds, ..Seen::of_a_test() });
        known.look(Seen { wall_seconds, ..Seen::of_a_test() });
        known
    }

    #[test]
    fn a_run_with_the_number_of_another_begins_anew() {
        let mut known = of_a_test(5.0);
        known.next = Instant::now();
        known.look(Seen { wall_seconds: 6.0, ..Seen::of_a_test() });
        assert_eq!(known.samples.all().len(), 2);
        known.look(Seen { wall_seconds: 0.5, ..Seen::of_a_test() });
        assert_eq!(known.samples.all().len(), 1);
        assert_eq!(known.samples.all()[0].seconds, 0.5);
        assert_eq!(known.samples.all()[0].stall_some_ns, 1_500_000_000);
    }

    /// Another user's run may answer anything, and a server shows it to its own user.
    #[test]
    fn whatever_a_run_says_there_is_a_page_about_it() {
        let answer = Seen::answer_of_a_test().to_string();
        let far = answer.replace("2.5", "1e300").replace("67108864", "18446744073709551615");
        let check = |first: Seen, then: Seen| {
            let mut known = Known::new(first.clone());
            for seen in [first, then] {
                known.next = Instant::now();
                known.look(seen);
            }
            let live = known.live(42);
            let begun = Instant::now();
            let pages = [runs_html(std::slice::from_ref(&live)), live_html(&live, &[])];
            assert!(pages.iter().all(|page| page.contains("</html>")));
            assert!(begun.elapsed() < Duration::from_secs(5), "{live:?}");
        };
        let seen = |text: &str| serde_json::from_str::<Seen>(text);
        check(seen(&answer).unwrap(), seen(&far).unwrap());
        bolero::check!().with_type::<(Script, Script)>().for_each(|scripts| {
            let seen = |script: &Script| seen(&script.text(&[&answer, &far]));
            if let (Ok(first), Ok(then)) = (seen(&scripts.0), seen(&scripts.1)) {
                check(first, then);
            }
        });
    }

    #[test]
    fn only_paths_of_pages_have_pages() {
        let past = Past::default();
        assert!(past.page("/").is_some());
        for path in ["/run/1", "/run/", "/run/../../etc/passwd", "/index.html", ""] {
            assert!(past.page(path).is_none(), "{path}");
        }
    }

    #[test]
    fn the_memory_of_this_process_is_shown() {
        let map = map_of(std::process::id() as i32).unwrap();
        assert_ne!(format!("{map:?}"), format!("{:?}", MemoryMap::new(String::new())));
        assert!(map_of(i32::MAX).is_none());
    }
}
