//! Guests that somebody else traces.
//!
//! Owns: having all of them in memory meanwhile. Who reads memory as debuggers do, by
//! `/proc/PID/mem`, gets an error for what is out, and nobody hears of it (`mm/gup.c`: a fault that
//! may not wait).
//! Invariants: they are brought back if memory has room for all that is out, and go out again when
//! the tracer has gone.
//! Not here: who is traced when it is to be attached to (`refusals`).

use super::Front;
use crate::guest::Traced;
use crate::watch::tracer_of;
use overspill_guest::Vpn;
use rustix::process::{Pid, getpid};
use std::time::{Duration, Instant};

/// How often it is looked who is traced.
const INTERVAL: Duration = Duration::from_millis(200);
/// And for how long what is back is left alone before it is looked what has gone out since.
const REST: Duration = Duration::from_secs(2);

impl Front {
    /// Brings back those that are traced, turn by turn.
    pub(super) fn tend_traced(&mut self) {
        if self.traced_looked.elapsed() >= INTERVAL {
            self.traced_looked = Instant::now();
            self.guests.pids().into_iter().for_each(|pid| self.note_tracer(pid));
        }
        let returning = self.guests.iter().filter_map(|(pid, guest)| match guest.traced {
            Traced::Returning(from) => Some((pid, guest.number, from)),
            _ => None,
        });
        for (pid, number, from) in returning.collect::<Vec<_>>() {
            let traced = match self.keeper.bring(number, from) {
                Ok(rest) => rest.map_or_else(|| Traced::Back(Instant::now()), Traced::Returning),
                // What has ended is about to be seen.
                Err(_) => Traced::Stays,
            };
            self.guests.of(pid).traced = traced;
        }
    }

    fn note_tracer(&mut self, pid: Pid) {
        let is_traced = tracer_of(pid).is_some_and(|tracer| tracer != getpid());
        let (number, traced) = (self.guests.of(pid).number, self.guests.of(pid).traced);
        self.guests.of(pid).traced = match (is_traced, traced) {
            (false, Traced::No) => Traced::No,
            (false, _) => {
                self.keeper.stay(number);
                Traced::No
            }
            (true, Traced::No) => self.begin_to_return(pid),
            (true, Traced::Back(since)) if since.elapsed() > REST => Traced::Returning(Vpn(0)),
            (true, traced) => traced,
        };
    }

    fn begin_to_return(&mut self, pid: Pid) -> Traced {
        match self.check_room() {
            Ok(()) => {
                self.keeper.say(&format!(
                    "process {pid} is traced: all of it comes back into memory, beyond the limit, \
                     until its tracer leaves"
                ));
                Traced::Returning(Vpn(0))
            }
            Err(why) => {
                self.keeper.say(&format!("process {pid} is traced, and may miss pages: {why}"));
                Traced::Stays
            }
        }
    }
}
