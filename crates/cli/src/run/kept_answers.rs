//! What a kept run answers while it goes on.
//!
//! Owns: the way of a question from the thread that hears it to the one that has the run, and back.
//! Invariant: that one never waits: who asks does, for its next turn.
//! Not here: the form of an answer (`live`), what can be asked (`crate::runs`).

use super::kept::{self, Kept};
use super::live::{Changed, Live, Process, json, refused};
use super::report::SCHEMA;
use crate::runs::Question;
use overspill::session::Answers;
use overspill::{Bytes, Summary, check_limit};
use overspill_run::{Front, RunProcess};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long an answer may take: the keeper may be opening a device.
const PATIENCE: Duration = Duration::from_secs(4);

/// A question, and where its answer is waited for.
type Asked = (String, Sender<String>);

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
        let answers = Answers::start(move |question| {
            let (reply, answer) = channel();
            let _ = ask.send((question.to_owned(), reply));
            // A run at its end has no answer.
            answer.recv_timeout(PATIENCE).unwrap_or_default()
        });
        let answers =
            answers.map_err(|error| format!("`overspill stats` will not find this run: {error}"));
        Ok(Self { asked, _answers: answers? })
    }

    /// Answers what was asked meanwhile.
    pub(super) fn answer(&self, run: &Kept, front: &mut Front) {
        while let Ok((question, reply)) = self.asked.try_recv() {
            let answer = match Question::of(&question) {
                Question::Look => json(&look(run, front)),
                Question::SetMemory(memory) => json(&set(run, front, memory)),
                Question::AddSwap(_) | Question::RemoveSwap(_) => {
                    json(&refused(&"swap is neither added nor removed with --way keeper yet"))
                }
            };
            // Who asked may have gone away.
            let _ = reply.send(answer);
        }
    }
}

fn set(run: &Kept, front: &mut Front, memory: Bytes) -> Changed {
    let before = front.memory();
    if let Err(error) = check_limit(memory) {
        return refused(&error);
    }
    if memory > run.memory_max {
        return refused(&overspill::Error::LimitAboveMost(memory, run.memory_max));
    }
    front.set_memory(memory);
    Changed::Set { memory_bytes: memory.0, memory_bytes_before: before.0 }
}

fn look<'r>(run: &'r Kept, front: &Front) -> Live<'r> {
    let areas = front.state().map(|(areas, _)| areas).unwrap_or_default();
    let devices: Vec<_> =
        areas.into_iter().enumerate().map(|(n, area)| kept::device(n, area)).collect();
    let processes: Vec<Process> = front
        .processes()
        .map(|RunProcess { pid, memory, is_paged }| Process {
            process: pid.as_raw_pid(),
            memory_bytes: memory.0,
            devices: if is_paged { devices.len() } else { 0 },
        })
        .collect();
    Live {
        schema: SCHEMA,
        run: std::process::id(),
        command: &run.command,
        wall_seconds: run.started.elapsed().as_secs_f64(),
        stalls: None,
        memory_bytes: front.memory().0,
        memory_bytes_max: run.memory_max.0,
        memory_used_bytes: processes.iter().map(|process| process.memory_bytes).sum(),
        processes,
        summary: Summary::of(front.memory(), &[front.keeper().stats().clone()]),
        devices,
    }
}
