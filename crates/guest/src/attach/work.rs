//! The steps of an attach, and their undoing.
//!
//! Owns: what has been changed so far.
//! Invariants: what may have been changed is noted before it is, so a step whose end was not seen
//! is undone, too. The agent is ended before its memory goes. Whatever is undone is done by the
//! thread that did it, before it is let go. The agent is an orphan, and comes to us. Where it would
//! come to the program, or to another process of the run that takes orphans, which would wait for
//! it, it is a child of the program without a signal at its end: `wait` does not see it, only
//! `__WALL` does.
//! Rejected: an agent that stays traced: a debugger in the program could not look at it, and
//! nothing needs it, but a filter that has to stay suspended.

use crate::attach::site::{self, Site, wait_for_end};
use crate::attach::{
    AgentTask, Attached, Files, Manner, ThreadWords, Userfaultfd, meeting, set_up,
};
use crate::channel::Channel;
use crate::error::{About, AttachError, Found, Result};
use crate::hold::Held;
use crate::inject::{self, Inside, PR_GET_TID_ADDRESS};
use crate::process::{self, Namespace};
use crate::system::{Change, Stop, System, Until, options};
use crate::tracer::Patience;
use overspill_agent::{
    ADDRESS_BYTES, AGENT_BYTES, CODE, CODE_BYTES, ENTRY, MAILBOX_AT, Mailbox, Request,
    STAGING_BYTES, kind, state,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use std::mem::offset_of;
use std::time::Duration;

const READ_EXECUTE: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
const MAP: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
const NO_FILE: u64 = u64::MAX;
const PR_GET_CHILD_SUBREAPER: u64 = 37;
const PR_SET_THP_DISABLE: u64 = 41;
/// How long the agent may take to start, and to answer.
pub(super) const AGENT_WAIT: Duration = Duration::from_secs(5);

/// An attach that is under way.
pub(super) struct Work<'w, 't, S: System> {
    held: &'w Held<'t, S>,
    site: &'w Site,
    inside: &'w Inside<'t, S>,
    /// Whether the agent is the program's child.
    is_child: bool,
    is_mapped: bool,
    /// The task that the program's thread has made, with its number there, until it is reaped.
    first: Option<(Pid, i32)>,
    agent: Option<Pid>,
    channel: Option<Channel>,
}

/// What an attach has made.
pub(super) struct Made {
    agent: Pid,
    is_child: bool,
    agent_process: OwnedFd,
    channel: Channel,
    userfaultfd: Option<OwnedFd>,
    forked: usize,
    staging: u64,
    threads: Vec<ThreadWords>,
    files: Files,
}

impl Made {
    pub(super) fn attached<S: System>(self, held: &Held<'_, S>, site: Site) -> Attached {
        let Self {
            agent,
            is_child,
            agent_process,
            channel,
            userfaultfd,
            forked,
            staging,
            threads,
            files,
        } = self;
        let is_traced = site.options & options::NO_FILTER != 0;
        if is_traced {
            held.tracer.keep(agent);
        }
        let (process, base) = (agent_process, site.base);
        Attached {
            pid: held.pid,
            process: site.process,
            agent: AgentTask { pid: agent, process, is_traced, is_child, channel, base, staging },
            userfaultfd,
            forked,
            threads,
            files,
        }
    }
}

impl<'w, 't, S: System> Work<'w, 't, S> {
    /// `as_child` as another attempt has found out.
    pub(super) fn new(
        held: &'w Held<'t, S>,
        site: &'w Site,
        inside: &'w Inside<'t, S>,
        as_child: bool,
    ) -> Self {
        let is_child = as_child || site.namespace == Namespace::Another;
        let (is_mapped, first, agent, channel) = (false, None, None, None);
        Self { held, site, inside, is_child, is_mapped, first, agent, channel }
    }

    fn system(&self) -> &'w S {
        &self.held.tracer.system
    }

    fn pid(&self) -> Pid {
        self.held.pid
    }

    pub(super) fn run(&mut self, manner: &Manner<'_>) -> Result<Made> {
        self.map()?;
        self.is_child |= self.takes_orphans()?;
        self.write(manner)?;
        let agent = self.make_agent()?;
        let agent_process =
            self.system().open_process(agent).about(self.pid(), "opening the agent of")?;
        let ready = self.wait_until_ready(agent)?;
        let socket = match manner.userfaultfd {
            Userfaultfd::None { listener: Some(listener), .. } => {
                meeting::accept(self.held, listener, agent)?
            }
            _ => self.take(agent_process.as_fd(), ready.sockets[0])?,
        };
        let channel = self.channel.insert(Channel::from(socket));
        let (answer, forked) = set_up::set_up(self.held, channel, manner, self.site.memory())?;
        let userfaultfd = match manner.userfaultfd {
            Userfaultfd::None { .. } => None,
            _ => Some(self.take(agent_process.as_fd(), answer.userfaultfd)?),
        };
        let threads = self.thread_words()?;
        let files = site::open_files(self.system(), agent);
        self.let_agent_go(agent)?;
        let channel = self.channel.take().expect("it was put there above");
        let staging = answer.staging;
        let is_child = self.is_child;
        Ok(Made {
            agent,
            is_child,
            agent_process,
            channel,
            userfaultfd,
            forked,
            staging,
            threads,
            files,
        })
    }

    // The agent's memory.

    fn map(&mut self) -> Result<()> {
        let (base, bytes) = (self.site.base, AGENT_BYTES as u64);
        self.is_mapped = true;
        let arguments = [base, bytes, READ_EXECUTE, MAP, NO_FILE, 0];
        match self.inside.call("mmap", libc::SYS_mmap, arguments) {
            Ok(place) if place == base => {}
            Ok(place) => return Err(self.unexpected("mmap", &format!("{place:#x}"))),
            Err(error) => {
                self.is_mapped = !matches!(error, AttachError::Inside { .. });
                return Err(error);
            }
        }
        let data = [base + CODE_BYTES as u64, bytes - CODE_BYTES as u64, READ_WRITE, 0, 0, 0];
        self.inside.call("mprotect", libc::SYS_mprotect, data)?;
        for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            let arguments = [base, bytes, advice as u64, 0, 0, 0];
            self.inside.call("madvise", libc::SYS_madvise, arguments)?;
        }
        Ok(())
    }

    /// True if the program takes orphans, as an init does.
    fn takes_orphans(&self) -> Result<bool> {
        let at = self.scratch();
        let arguments = [PR_GET_CHILD_SUBREAPER, at, 0, 0, 0, 0];
        match self.inside.call("prctl", libc::SYS_prctl, arguments) {
            Ok(_) => {}
            // It has a filter that knows no such question: whoever takes the agent is seen then.
            Err(AttachError::Filtered { .. } | AttachError::Inside { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        let mut takes = [0; 4];
        let read = self.system().read_memory(self.site.memory(), at, &mut takes);
        read.about(self.pid(), "reading the mailbox in")?;
        Ok(takes != [0; 4])
    }

    /// Where a call inside may write: the request's place. The agent is not there yet, or has read
    /// it, and reads the next one there later.
    fn scratch(&self) -> u64 {
        self.site.base + (MAILBOX_AT + offset_of!(Mailbox, request)) as u64
    }

    fn write(&self, manner: &Manner<'_>) -> Result<()> {
        let (address, address_bytes) = match manner.userfaultfd {
            Userfaultfd::None { listener: Some(listener), .. } => {
                meeting::address_of(self.held, listener)?
            }
            _ => ([0; ADDRESS_BYTES], 0),
        };
        let mailbox = Mailbox {
            address,
            address_bytes,
            single: u32::from(self.is_child),
            keeps_rights: u32::from(matches!(manner.userfaultfd, Userfaultfd::Call)),
            program: self.site.own_number,
            ..bytemuck::Zeroable::zeroed()
        };
        let memory = self.site.memory();
        let mailbox = bytemuck::bytes_of(&mailbox);
        for (at, bytes) in [(0, CODE), (MAILBOX_AT, mailbox)] {
            let written = self.system().write_memory(memory, self.site.base + at as u64, bytes);
            written.about(self.pid(), "writing the agent into")?;
        }
        Ok(())
    }

    // The agent's task.

    fn make_agent(&mut self) -> Result<Pid> {
        let base = self.site.base;
        let stack = base + AGENT_BYTES as u64;
        // No signal at its end; nothing but the address space in common.
        let arguments = [libc::CLONE_VM as u64, stack, 0, 0, 0, 0];
        let first = self.inside.clone(arguments)?;
        self.first = Some((first, first.as_raw_nonzero().get()));
        // The agent is made with the same. Where that is not permitted it has its turn later.
        let _ = self.system().urge(first);
        self.begins_at(first, base + ENTRY as u64)?;
        let agent = if self.is_child {
            let own_number = process::status(self.system(), first, first)?.own_number;
            self.first = Some((first, own_number));
            self.agent = Some(first);
            first
        } else {
            self.second(first)?
        };
        self.inside.end_clone()?;
        if self.agent != Some(first) {
            self.reap_first()?;
        }
        let system = self.system();
        if self.first.is_none() {
            self.stands(agent)?;
        }
        let kept = self.site.options | options::EXIT_KILL;
        system.set_options(agent, kept).about(self.pid(), "setting trace options of")?;
        system.resume(agent, Until::Stop, 0).about(self.pid(), "starting the agent of")?;
        Ok(agent)
    }

    /// Lets the first task make the agent, and end.
    fn second(&mut self, first: Pid) -> Result<Pid> {
        let (system, tracer) = (self.system(), self.held.tracer);
        system.resume(first, Until::Stop, 0).about(self.pid(), "starting the agent of")?;
        match tracer.next_stop(self.pid(), first) {
            Ok(Stop::Clone) => {}
            Ok(stop) => return Err(self.unexpected("starting its agent", &format!("{stop:?}"))),
            Err(error) => return Err(error),
        }
        let agent = tracer.persist(|| system.event_message(first));
        let agent = agent.and_then(|agent| Pid::from_raw(agent as i32));
        let agent = agent.ok_or_else(|| self.unexpected("starting its agent", &"no number"))?;
        self.agent = Some(agent);
        tracer.persist(|| system.resume(first, Until::Stop, 0));
        if !wait_for_end(tracer, first, AGENT_WAIT) {
            return Err(AttachError::Slow { pid: self.pid(), what: "the agent's start" });
        }
        self.check_parent(agent)?;
        Ok(agent)
    }

    /// Looks who has the agent, now that the task which has made it has ended.
    fn check_parent(&mut self, agent: Pid) -> Result<()> {
        let (pid, parent) = (self.pid(), process::status(self.system(), agent, agent)?.parent);
        match Pid::from_raw(parent) {
            Some(by)
                if by != rustix::process::getpid()
                    && process::descends_from_us(self.system(), by)? =>
            {
                self.dismiss(agent)?;
                Err(AttachError::Adopted { pid, by })
            }
            _ => Ok(()),
        }
    }

    /// Has an agent that has not begun exit: its parent sees no signal.
    fn dismiss(&mut self, agent: Pid) -> Result<()> {
        self.stands(agent)?;
        let system = self.system();
        let registers = system.registers(agent).about(self.pid(), "asking the agent of")?;
        let exiting = registers.calling(self.site.gate, libc::SYS_exit_group as u64, [0; 6]);
        system.set_registers(agent, &exiting).about(self.pid(), "asking the agent of")?;
        system.resume(agent, Until::Stop, 0).about(self.pid(), "asking the agent of")?;
        if wait_for_end(self.held.tracer, agent, AGENT_WAIT) {
            self.agent = None;
        }
        Ok(())
    }

    /// Waits until a new task stands at its start, and has it begin elsewhere.
    fn begins_at(&self, task: Pid, entry: u64) -> Result<()> {
        self.stands(task)?;
        let registers = self.system().registers(task).map(|registers| registers.at_rest(entry));
        let begins = registers.and_then(|begins| self.system().set_registers(task, &begins));
        begins.about(self.pid(), "starting the agent of")
    }

    /// Waits until a new task stands at its start.
    fn stands(&self, task: Pid) -> Result<()> {
        match self.held.tracer.next_stop(self.pid(), task)? {
            Stop::Told | Stop::Group => Ok(()),
            stop => Err(self.unexpected("starting its agent", &format!("{stop:?}"))),
        }
    }

    /// Has the program's thread reap the task that it has made and that has ended.
    fn reap_first(&mut self) -> Result<()> {
        if let Some((_, number)) = self.first {
            let arguments = [number as u64, 0, libc::__WALL as u64, 0, 0, 0];
            self.inside.call("wait4", libc::SYS_wait4, arguments)?;
            self.first = None;
        }
        Ok(())
    }

    fn wait_until_ready(&self, agent: Pid) -> Result<Mailbox> {
        let mut patience = Patience::new(AGENT_WAIT);
        loop {
            match self.state()? {
                state::READY => return self.mailbox(),
                state::FAILED => return Err(self.failure(self.mailbox()?)),
                _ => {}
            }
            if let Ok(Some(Change::Stopped(_))) = self.system().wait(agent) {
                self.held.tracer.persist(|| self.system().resume(agent, Until::Stop, 0));
            }
            if !patience.pause() {
                return Err(AttachError::Slow { pid: self.pid(), what: "the agent's start" });
            }
        }
    }

    fn state(&self) -> Result<u32> {
        let mut state = [0; 4];
        let address = self.site.base + (MAILBOX_AT + offset_of!(Mailbox, state)) as u64;
        let read = self.system().read_memory(self.site.memory(), address, &mut state);
        read.about(self.pid(), "reading the mailbox in")?;
        Ok(u32::from_ne_bytes(state))
    }

    fn mailbox(&self) -> Result<Mailbox> {
        let mut mailbox: Mailbox = bytemuck::Zeroable::zeroed();
        let (memory, address) = (self.site.memory(), self.site.base + MAILBOX_AT as u64);
        let read = self.system().read_memory(memory, address, bytemuck::bytes_of_mut(&mut mailbox));
        read.about(self.pid(), "reading the mailbox in")?;
        Ok(mailbox)
    }

    fn failure(&self, mailbox: Mailbox) -> AttachError {
        let errno = Errno::from_raw_os_error(mailbox.errno.clamp(1, 4095));
        AttachError::Agent { pid: self.pid(), step: mailbox.step, errno }
    }

    fn take(&self, agent: BorrowedFd<'_>, number: i32) -> Result<OwnedFd> {
        let taken = self.system().take_descriptor(agent, number);
        taken.about(self.pid(), "taking a descriptor of the agent in")
    }

    /// The agent goes on without us, unless its filter has to stay suspended.
    fn let_agent_go(&self, agent: Pid) -> Result<()> {
        if self.site.options & options::NO_FILTER != 0 {
            return Ok(());
        }
        let (system, tracer) = (self.system(), self.held.tracer);
        system.interrupt(agent).about(self.pid(), "stopping the agent of")?;
        self.stands(agent)?;
        tracer.persist(|| system.detach(agent, 0));
        Ok(())
    }

    // Its threads.

    /// Asks for the addresses of all threads, the stopped ones for all of them.
    fn thread_words(&self) -> Result<Vec<ThreadWords>> {
        let (system, held) = (self.system(), self.held);
        let usable = inject::usable(held, self.site.memory())?;
        let words = |(task, thread): (&Pid, &crate::hold::Thread)| {
            let known = |address: std::result::Result<u64, Errno>| {
                address.ok().filter(|address| *address != 0)
            };
            let usable = usable.iter().find(|usable| usable.task == *task);
            let clear_child_tid = match usable {
                Some(usable) => self.clear_child_tid(*usable)?,
                None => None,
            };
            let rseq = if thread.stopped { known(system.rseq(*task)) } else { None };
            let robust_list = known(system.robust_list(*task));
            Ok(ThreadWords { task: *task, robust_list, rseq, clear_child_tid })
        };
        held.threads.iter().map(words).collect()
    }

    /// Asks a thread for the address that is cleared at its end.
    fn clear_child_tid(&self, usable: inject::Usable) -> Result<Option<u64>> {
        let at = self.scratch();
        let arguments = [PR_GET_TID_ADDRESS, at, 0, 0, 0, 0];
        let ask = |inside: &Inside<'_, S>| inside.call("prctl", libc::SYS_prctl, arguments);
        let asked = if usable.task == self.site.thread.task {
            ask(self.inside)
        } else {
            let options = site::filter_options(self.system(), self.pid(), usable.task)?;
            Inside::begin(self.held, usable, self.site.gate, options).and_then(|other| ask(&other))
        };
        match asked {
            Ok(_) => {}
            // It has a filter that the others have not; or CONFIG_CHECKPOINT_RESTORE is not set.
            Err(AttachError::Filtered { .. } | AttachError::Inside { errno: Errno::INVAL, .. }) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let mut address = [0; 8];
        let read = self.system().read_memory(self.site.memory(), at, &mut address);
        read.about(self.pid(), "reading the mailbox in")?;
        let address = u64::from_ne_bytes(address);
        Ok(Some(address).filter(|address| *address != 0))
    }

    fn unexpected(&self, doing: &'static str, found: &dyn std::fmt::Display) -> AttachError {
        AttachError::Unexpected { pid: self.pid(), doing, found: Found(found.to_string()) }
    }

    // Undoing.

    /// Takes away all that was made.
    pub(super) fn undo(&mut self) {
        self.ask_to_leave();
        self.end_tasks();
        let mailbox = self.held.tracer.persist(|| self.mailbox().map_err(|_| Errno::IO));
        if let Some(mailbox) = mailbox.filter(|_| self.is_mapped) {
            self.undo_agents_work(&mailbox);
        }
        if self.is_mapped {
            self.unmap(self.site.base, AGENT_BYTES);
        }
    }

    fn ask_to_leave(&self) {
        if let Some(channel) = &self.channel {
            // An agent that does not is ended.
            let _ = channel.ask(self.system(), &Request::of(kind::LEAVE), &[], AGENT_WAIT);
        }
    }

    fn end_tasks(&mut self) {
        let (system, tracer) = (self.system(), self.held.tracer);
        let first = self.first.map(|(task, _)| task);
        let agent = self.agent.filter(|agent| Some(*agent) != first);
        for task in first.into_iter().chain(agent) {
            tracer.persist(|| system.kill(task));
            wait_for_end(tracer, task, AGENT_WAIT);
        }
        if let Some((_, number)) = self.first {
            let arguments = [number as u64, 0, libc::__WALL as u64, 0, 0, 0];
            self.surely("wait4", libc::SYS_wait4, arguments);
        }
    }

    fn undo_agents_work(&self, mailbox: &Mailbox) {
        if mailbox.answer.staging != 0 {
            self.unmap(mailbox.answer.staging, STAGING_BYTES);
        }
        if mailbox.huge_pages_off != 0 {
            let arguments = [PR_SET_THP_DISABLE, 0, 0, 0, 0, 0];
            self.surely("prctl", libc::SYS_prctl, arguments);
        }
    }

    fn unmap(&self, start: u64, bytes: usize) {
        self.surely("munmap", libc::SYS_munmap, [start, bytes as u64, 0, 0, 0, 0]);
    }

    /// Nothing is left to be done if it fails: then the program is gone.
    fn surely(&self, name: &'static str, number: libc::c_long, arguments: [u64; 6]) {
        let _ = self.inside.surely(name, number, arguments);
    }
}
