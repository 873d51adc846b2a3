//! What a kept run answers while it goes on.
//!
//! Owns: the way of a question from the thread that hears it to the one that has the run, and back.
//! Invariant: that one never waits: who asks does, for its next turn.
//! Not here: the form of an answer (`live`), what can be asked (`crate::runs`), changing where a
//! run swaps to (`places`).

use super::kept::Kept;
use super::live::{Changed, Live, Process, json, refused};
use super::report::{Device, SCHEMA, Stalls};
use super::signals::blocked;
use crate::error::Error;
use crate::runs::Question;
use crate::say;
use overspill::{Bytes, Summary, check_limit};
use overspill_run::{Answers, Front, Peer, RunProcess};
use rustix::process::Pid;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long an answer may take: the keeper may be opening a device.
const PATIENCE: Duration = Duration::from_secs(4);

/// A question, who asks, and where the answer is waited for.
type Asked = (String, Peer, Sender<String>);

/// Questions to a run.
pub(super) struct Questions {
    asked: Receiver<Asked>,
    _answers: Answers,
}

impl Questions {
    /// Hears questions from now on.
    ///
    /// # Errors
    /// A line about why `overspill stats` will not find the run, which goes on all the same.
    pub(super) fn hear() -> Result<Self, String> {
        let (ask, asked) = channel::<Asked>();
        let hear = move |question: &str, asker| {
            let (reply, answer) = channel();
            let _ = ask.send((question.to_owned(), asker, reply));
            // A run at its end has no answer.
            answer.recv_timeout(PATIENCE).unwrap_or_default()
        };
        let answers = blocked(|| Answers::start(hear));
        let answers =
            answers.map_err(|error| format!("`overspill stats` will not find this run: {error}"));
        Ok(Self { asked, _answers: answers? })
    }

    /// Answers what was asked meanwhile.
    pub(super) fn answer(&self, run: &Kept, front: &mut Front) {
        while let Ok((question, asker, reply)) = self.asked.try_recv() {
            let question = Question::of(&question);
            let changed = match &question {
                Question::Look => None,
                Question::Detach => Some(detach(front)),
                Question::SetMemory(memory) => Some(set(run, front, *memory)),
                Question::AddSwap(place) => Some(run.swaps.add(front, place)),
                Question::RemoveSwap(name) => Some(run.swaps.remove(front, name)),
            };
            let told = changed.as_ref().and_then(|changed| told(&question, changed));
            if let Some(told) = told.filter(|_| !run.quiet) {
                say::line(format_args!("{} {told}", name_of(asker)));
            }
            let answer = changed.map_or_else(|| json(&look(run, front)), |changed| json(&changed));
            // Who asked may have gone away.
            let _ = reply.send(answer);
        }
    }
}

/// What was done, for the user of the run, who may be somebody else.
fn told(question: &Question, changed: &Changed) -> Option<String> {
    match (question, changed) {
        (_, Changed::Set { memory_bytes, memory_bytes_before }) => {
            let (now, before) = (Bytes(*memory_bytes), Bytes(*memory_bytes_before));
            Some(format!("has set the limit to {now}, which was {before}"))
        }
        (_, Changed::Added { device }) => Some(format!("has added swap: {device}")),
        (Question::RemoveSwap(name), Changed::Leaving { .. }) => {
            Some(format!("has swap taken away: {name}"))
        }
        (_, Changed::LetsGo { .. }) => Some("has the processes let go".into()),
        _ => None,
    }
}

fn name_of(Peer { user, process }: Peer) -> String {
    let Some(process) = process.map(Pid::as_raw_pid) else {
        return format!("a process of user {user} in another PID namespace");
    };
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    format!("process {process} ({}) of user {user}", name.trim_end())
}

fn detach(front: &mut Front) -> Changed {
    front.let_go().map_or_else(|why| refused(&why), |()| Changed::LetsGo { lets_go: true })
}

fn set(run: &Kept, front: &mut Front, memory: Bytes) -> Changed {
    let before = front.memory();
    if let Err(error) = check_limit(memory) {
        return refused(&error);
    }
    if memory > run.memory_max {
        return refused(&Error::LimitAboveMost(memory, run.memory_max));
    }
    front.set_memory(memory);
    Changed::Set { memory_bytes: memory.0, memory_bytes_before: before.0 }
}

fn look<'r>(run: &'r Kept, front: &Front) -> Live<'r> {
    let areas = front.state().map(|(areas, _)| areas).unwrap_or_default();
    let devices: Vec<_> = areas.into_iter().map(Device::of).collect();
    // Each swaps to all areas, when it is paged.
    let areas = devices.last().map_or(0, |device| device.area + 1);
    let processes: Vec<Process> = front
        .processes()
        .map(|RunProcess { pid, memory, .. }| Process {
            process: pid.as_raw_pid(),
            memory_bytes: memory.0,
            devices: areas,
        })
        .collect();
    Live {
        schema: SCHEMA,
        run: std::process::id(),
        command: &run.command,
        wall_seconds: run.started.elapsed().as_secs_f64(),
        stalls: Stalls::new(run.pressure.time()),
        memory_bytes: front.memory().0,
        memory_bytes_max: run.memory_max.0,
        memory_used_bytes: front.memory_used().0,
        over_limit_bytes: front.excess().0,
        lets_go: front.lets_go(),
        has_let_go: front.has_let_go(),
        processes,
        summary: Summary::of(front.memory(), &[front.keeper().stats().clone()]),
        devices,
    }
}
