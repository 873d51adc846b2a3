//! Guests that somebody else traces.
//!
//! Owns: having all of them in memory meanwhile. Who reads memory as debuggers do, by
//! `/proc/PID/mem`, gets an error for what is out, and nobody hears of it (`mm/gup.c`: a fault that
//! may not wait).
//! Invariants: they are brought back if memory has room for all that is out, and go out again when
//! the tracer has gone.
//! Not here: who is traced when it is to be attached to (`refusals`).

use super::{Front, NoRoom};
use crate::guest::Traced;
use crate::keeper::{Bring, KeeperError, Purpose};
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
            let pids = self.guests.pids();
            let unknown = pids.into_iter().filter(|pid| !self.note_tracer(*pid)).count();
            if unknown == 0 {
                self.traced_looked = Instant::now();
            }
        }
        let returning = self.guests.iter().filter_map(|(pid, guest)| match guest.traced {
            Traced::Returning(from) => Some((pid, guest.number, from)),
            _ => None,
        });
        for (pid, number, from) in returning.collect::<Vec<_>>() {
            self.guests.of(pid).traced = Traced::Asked;
            self.keeper.bring(Bring { number, from, purpose: Purpose::Traced });
        }
    }

    /// Some of one that is traced has come back, or cannot.
    pub(super) fn came_for_tracer(&mut self, number: u64, rest: Result<Option<Vpn>, KeeperError>) {
        let Some(pid) = self.guests.pid_of(number) else { return };
        let back = || Traced::Back(Instant::now());
        // What has ended is about to be seen.
        self.guests.of(pid).traced =
            rest.map_or(Traced::Stays, |rest| rest.map_or_else(back, Traced::Returning));
    }

    /// False if it is not known yet whether there is room for one that is traced.
    fn note_tracer(&mut self, pid: Pid) -> bool {
        let is_traced = tracer_of(pid).is_some_and(|tracer| tracer != getpid());
        let traced = self.guests.of(pid).traced;
        self.guests.of(pid).traced = match (is_traced, traced) {
            (false, Traced::No) => Traced::No,
            (false, _) => {
                self.page_on(pid);
                Traced::No
            }
            (true, Traced::No) => match self.check_room() {
                Some(has_room) => self.begin_to_return(pid, has_room),
                None => return false,
            },
            (true, Traced::Back(since)) if since.elapsed() > REST => Traced::Returning(Vpn(0)),
            (true, traced) => traced,
        };
        true
    }

    fn begin_to_return(&self, pid: Pid, has_room: Result<(), NoRoom>) -> Traced {
        match has_room {
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
