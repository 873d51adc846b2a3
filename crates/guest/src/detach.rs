//! How a guest becomes a process like others again.
//!
//! Owns: the agent's farewell, and what it cannot take away itself: the code that it runs on.
//! Invariants: nothing of it is left afterwards: no task, no mapping. The process is held
//! meanwhile, so that no new mapping of the program comes where the agent's was; and nothing is
//! unmapped that is not seen to be the agent's, so that a detach can be tried again.
//! Not here: bringing pages back, and ending the registrations: both come before.

use crate::attach::{AgentTask, Site, wait_for_end};
use crate::channel::ChannelError;
use crate::error::{About, AttachError, Found, Result};
use crate::hold::Held;
use crate::inject::Inside;
use crate::process;
use crate::system::System;
use overspill_agent::{
    AGENT_BYTES, CODE, CODE_BYTES, MAILBOX_AT, Mailbox, Request, STAGING_BYTES, kind, state,
};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::process::Pid;
use std::time::Duration;

/// How long the agent may take.
const LEAVE_WAIT: Duration = Duration::from_secs(5);

/// Takes the agent out of a guest that is held.
///
/// # Errors
/// The guest has ended, or no thread of it can make calls now. It can be tried again.
pub fn detach<S: System>(held: &Held<'_, S>, agent: &AgentTask) -> Result<()> {
    let site = Site::survey(held, AGENT_BYTES)?;
    let inside = Inside::begin(held, site.thread, site.gate, site.options)?;
    // Of the agent's number in its namespace nothing is known once it has been reaped.
    let number = if agent.is_child { own_number(held, agent.pid) } else { None };
    leave(held, agent)?;
    if let Some(number) = number {
        let arguments = [number as u64, 0, libc::__WALL as u64, 0, 0, 0];
        inside.surely("wait4", libc::SYS_wait4, arguments)?;
    }
    let unmap = |start: u64, bytes: usize| {
        inside.surely("munmap", libc::SYS_munmap, [start, bytes as u64, 0, 0, 0, 0])
    };
    let memory = site.memory();
    if has_mailbox(held, memory, agent, site.own_number) {
        unmap(agent.staging, STAGING_BYTES)?;
        unmap(agent.base + CODE_BYTES as u64, AGENT_BYTES - CODE_BYTES)?;
    }
    if has_code(held, memory, agent) {
        unmap(agent.base, CODE_BYTES)?;
    }
    Ok(())
}

fn own_number<S: System>(held: &Held<'_, S>, agent: Pid) -> Option<i32> {
    let status = process::status(&held.tracer.system, agent, agent);
    status.ok().map(|status| status.own_number)
}

/// Asks the agent to leave, and waits for its end. One that has ended has been left by somebody.
fn leave<S: System>(held: &Held<'_, S>, agent: &AgentTask) -> Result<()> {
    let (system, pid) = (&held.tracer.system, held.pid);
    match agent.channel.ask(system, &Request::of(kind::LEAVE), &[], LEAVE_WAIT) {
        Ok(_) | Err(ChannelError::Ended) => {}
        Err(ChannelError::Silent) => return Err(AttachError::Slow { pid, what: "its agent" }),
        Err(error) => {
            let found = Found(error.to_string());
            return Err(AttachError::Unexpected { pid, doing: "asking its agent to leave", found });
        }
    }
    if agent.is_traced {
        wait_for_end(held.tracer, agent.pid, LEAVE_WAIT);
    }
    let ended = system.readable(agent.process.as_fd(), LEAVE_WAIT);
    if !ended.about(pid, "waiting for the agent of")? {
        return Err(AttachError::Slow { pid, what: "its agent's end" });
    }
    // If it was our child, as the orphans of a subreaper are, it is gone now.
    let _ = system.wait(agent.pid);
    Ok(())
}

/// Returns true if what an agent that leaves unmaps is still there: it has crashed.
fn has_mailbox<S: System>(
    held: &Held<'_, S>,
    memory: BorrowedFd<'_>,
    agent: &AgentTask,
    program: i32,
) -> bool {
    let mut mailbox: Mailbox = bytemuck::Zeroable::zeroed();
    let (at, bytes) = (agent.base + MAILBOX_AT as u64, bytemuck::bytes_of_mut(&mut mailbox));
    let read = held.tracer.persist(|| held.tracer.system.read_memory(memory, at, bytes));
    read.is_some() && (mailbox.program, mailbox.state) == (program, state::READY)
}

/// Returns true if the agent's code is there: it is not after another try, or after an exec.
fn has_code<S: System>(held: &Held<'_, S>, memory: BorrowedFd<'_>, agent: &AgentTask) -> bool {
    let mut code = vec![0; CODE.len()];
    let read = |to: &mut [u8]| held.tracer.system.read_memory(memory, agent.base, to);
    held.tracer.persist(|| read(&mut code)).is_some() && code == CODE
}
