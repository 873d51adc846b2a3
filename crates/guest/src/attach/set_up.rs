//! What an agent that has begun is asked for first.
//!
//! Owns: which userfaultfd it takes, and what its refusals mean.
//! Not here: its start ([`super::work`]).

use crate::attach::work::AGENT_WAIT;
use crate::attach::{Manner, Userfaultfd};
use crate::channel::{Channel, ChannelError};
use crate::error::{AttachError, Found, Result};
use crate::hold::Held;
use crate::system::System;
use overspill_agent::{Answer, Barrier, Request, flag, kind, step};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::process::Pid;

/// Sets the agent up; returns which of several userfaultfds it took, too. `memory` is the
/// program's.
pub(super) fn set_up<S: System>(
    held: &Held<'_, S>,
    channel: &Channel,
    manner: &Manner<'_>,
    memory: BorrowedFd<'_>,
) -> Result<(Answer, usize)> {
    let ask = |source, other: Option<BorrowedFd<'_>>| {
        let huge_pages = if manner.huge_pages { 0 } else { flag::NO_HUGE_PAGES };
        let request = Request { flags: source | huge_pages, ..Request::of(kind::SET_UP) };
        let descriptors: Vec<_> = std::iter::once(manner.memory).chain(other).collect();
        channel.ask(&held.tracer.system, &request, &descriptors, AGENT_WAIT)
    };
    let refused = |error| refused(held.pid, error);
    match manner.userfaultfd {
        Userfaultfd::Call => ask(0, None).map(|answer| (answer, 0)).map_err(refused),
        Userfaultfd::Device(device) => {
            ask(flag::DEVICE, Some(device)).map(|answer| (answer, 0)).map_err(refused)
        }
        Userfaultfd::None { barrier, .. } => {
            let asked = ask(Barrier::word(Some(barrier)), Some(memory));
            asked.map(|answer| (answer, 0)).map_err(refused)
        }
        Userfaultfd::Forked(brought) => {
            let asked = brought.iter().map(|fd| ask(flag::USERFAULTFD, Some(*fd)));
            let own = asked.enumerate().find(|(_, answer)| !is_anothers(answer));
            let (n, answer) = own.ok_or(AttachError::NoFork { pid: held.pid })?;
            answer.map(|answer| (answer, n)).map_err(refused)
        }
    }
}

/// True if the userfaultfd that was given is another address space's.
fn is_anothers(answer: &std::result::Result<Answer, ChannelError>) -> bool {
    matches!(answer, Err(ChannelError::Refused { step: step::USERFAULTFD, errno: Errno::INVAL }))
}

fn refused(pid: Pid, error: ChannelError) -> AttachError {
    match error {
        ChannelError::Refused { step, errno } => AttachError::Agent { pid, step, errno },
        ChannelError::Silent => AttachError::Slow { pid, what: "the agent's set-up" },
        ChannelError::Socket(errno) => {
            AttachError::Kernel { pid, doing: "asking the agent of", errno }
        }
        error => AttachError::Unexpected {
            pid,
            doing: "asking its agent",
            found: Found(error.to_string()),
        },
    }
}
