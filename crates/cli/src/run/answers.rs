//! What a kept run answers while it goes on.
//!
//! Owns: the way of a question from the thread that hears it to the one that has the run, and back.
//! Invariant: that one never waits: who asks does, for its next turns. A question is done with
//! before the next is begun with.
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
use overspill_run::{Answers, AreaState, Front, Peer, RunProcess};
use rustix::process::Pid;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long an answer may take: the keeper may be opening a device.
const PATIENCE: Duration = Duration::from_secs(4);

/// A question, when it was asked and by whom, and where the answer is waited for.
struct Asked {
    question: Question,
    at: Instant,
    asker: Peer,
    reply: Sender<String>,
}

/// Questions to a run.
pub(super) struct Questions {
    asked: Receiver<Asked>,
    /// The one that is being answered.
    open: Option<Asked>,
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
            let (question, at) = (Question::of(question), Instant::now());
            let _ = ask.send(Asked { question, at, asker, reply });
            // A run at its end has no answer.
            answer.recv_timeout(PATIENCE).unwrap_or_default()
        };
        let answers = blocked(|| Answers::start(hear));
        let answers =
            answers.map_err(|error| format!("`overspill stats` will not find this run: {error}"));
        Ok(Self { asked, open: None, _answers: answers? })
    }

    /// Answers what was asked meanwhile, as far as the answers are known.
    pub(super) fn answer(&mut self, run: &Kept, front: &mut Front) {
        while let Some(asked) = self.open.take().or_else(|| self.asked.try_recv().ok()) {
            match answer(&asked, run, front) {
                // Who asked may have gone away.
                Some(answer) => _ = asked.reply.send(answer),
                None => return self.open = Some(asked),
            }
        }
    }
}

/// The answer; `None` if it is not known yet.
fn answer(asked: &Asked, run: &Kept, front: &mut Front) -> Option<String> {
    let changed = match &asked.question {
        Question::Look => {
            let (areas, _) = front.state_since(asked.at)?;
            return Some(json(&look(run, front, areas)));
        }
        Question::Detach => detach(front)?,
        Question::SetMemory(memory) => set(run, front, *memory),
        Question::AddSwap(place) => run.swaps.add(front, (place, asked.at))?,
        Question::RemoveSwap(name) => run.swaps.remove(front, name)?,
    };
    if let Some(told) = told(&asked.question, &changed).filter(|_| !run.quiet) {
        say::line(format_args!("{} {told}", name_of(&asked.asker)));
    }
    Some(json(&changed))
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

fn name_of(peer: &Peer) -> String {
    let user = peer.user;
    let Some(process) = peer.process.map(Pid::as_raw_pid) else {
        return format!("a process of user {user} in another PID namespace");
    };
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    // Its number may be somebody else's by now.
    let name = if peer.goes_on() { name.trim_end() } else { "which has ended" };
    format!("process {process} ({name}) of user {user}")
}

fn detach(front: &mut Front) -> Option<Changed> {
    let lets_go = front.let_go()?;
    Some(lets_go.map_or_else(|why| refused(&why), |()| Changed::LetsGo { lets_go: true }))
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

fn look<'r>(run: &'r Kept, front: &Front, areas: Vec<AreaState>) -> Live<'r> {
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
