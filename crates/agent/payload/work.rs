//! What the agent does when it is asked.
//!
//! Owns: the descriptors that it got, staging, and what it changed in the program: huge pages.
//! Invariants: each request gets one answer, a batch two. Counts are checked; addresses are not:
//! the kernel checks them, and whoever sends them has the program's memory in its hands anyway. An
//! EAGAIN with nothing done means that an event waits to be read, and nothing is moved after it.
//! Staging is empty before a request and after it; it is not registered while it is emptied, so
//! that makes no event.
//! Not here: which runs are asked for; what is made of the pages in the memory file.

use crate::calls::{self, EAGAIN, EBADF, EBUSY, EEXIST, EINVAL, EIO, ENOENT, Errno};
use crate::gate::{BELL_AT, LETTERS_AT, LETTERS_BYTES};
use crate::end::{end_program, leave_quietly};
use crate::held::{Moving, open_letters};
use crate::messages::{self, Descriptors};
use crate::touches::Touched;
use crate::words::{
    ANCHOR_AT, Answer, Barrier, EXECUTABLE, Mailbox, Outcome, PAGE_BYTES, PROTECTED, RUNS_MAX,
    Request, Run, STAGING_BYTES, STAGING_PAGES, flag, kind, step,
};
use crate::{At, Failed, filter};

/// No descriptor.
pub const NONE: i32 = -1;

/// The agent at work.
pub struct Agent<'m> {
    base: usize,
    request: &'m mut Request,
    answer: &'m mut Answer,
    huge_pages_off: &'m mut u32,
    channel: i32,
    program: i32,
    userfaultfd: i32,
    memory: i32,
    /// The program's memory, where touches raise signals.
    touched: Option<Touched>,
    staging: usize,
    /// Where the gate is; 0 if there is none.
    gate: usize,
    /// Where it runs, once it was told.
    cpu: u32,
    /// The program had switched huge pages off itself.
    had_none: bool,
}

impl<'m> Agent<'m> {
    pub fn new(base: usize, mailbox: &'m mut Mailbox, channel: i32, program: i32) -> Self {
        let Mailbox { request, answer, huge_pages_off, .. } = mailbox;
        Self {
            base,
            request,
            answer,
            huge_pages_off,
            channel,
            program,
            userfaultfd: NONE,
            memory: NONE,
            touched: None,
            staging: 0,
            gate: 0,
            cpu: u32::MAX,
            had_none: false,
        }
    }

    /// Answers requests until told to leave, or until the channel ends.
    pub fn serve(mut self) -> ! {
        loop {
            let (bytes, descriptors) = messages::receive(self.channel, self.request);
            if bytes == 0 {
                self.end()
            }
            self.clear_answer();
            let done = if bytes == size_of::<Request>() {
                self.obey(descriptors)
            } else {
                Err(EINVAL).at(step::WORDS)
            };
            if let Err(Failed { step, errno }) = done {
                (self.answer.step, self.answer.errno) = (step, errno);
            }
            if calls::send(self.channel, &*self.answer).is_err() {
                self.end()
            }
            if bytes == size_of::<Request>() && self.request.kind == kind::LEAVE {
                leave_quietly(self.base)
            }
        }
    }

    /// The channel is gone. Before the agent was set up nothing depended on it.
    fn end(&self) -> ! {
        if self.memory == NONE {
            leave_quietly(self.base)
        }
        end_program(self.base, self.program)
    }

    fn clear_answer(&mut self) {
        let Answer { errno, step, pages, userfaultfd, staging, runs } = &mut *self.answer;
        (*errno, *step, *pages, *userfaultfd, *staging) = (0, 0, 0, NONE, 0);
        for run in runs {
            (run.pages, run.errno) = (0, 0);
        }
    }

    fn obey(&mut self, [first, second]: Descriptors) -> Result<(), Failed> {
        if self.request.kind == kind::SET_UP && self.memory == NONE {
            return self.set_up(first, second);
        }
        if self.request.kind == kind::GATE {
            self.join_gate(first, second)?;
        }
        for descriptor in [first, second] {
            if descriptor != NONE {
                let _ = calls::close(descriptor);
            }
        }
        match self.request.kind {
            kind::LEAVE => self.let_go(),
            kind::HUGE_PAGES => self.huge_pages(),
            _ if self.memory == NONE => Err(EBADF).at(step::WORDS),
            kind::REGISTER => self.register(),
            kind::BATCH => self.batch(),
            kind::POPULATE => self.populate(),
            kind::GATE => Ok(()),
            kind::FILL => self.fill(),
            kind::CLEAR => self.clear(),
            _ => Err(EINVAL).at(step::WORDS),
        }
    }

    /// Maps what the gate and the keeper share, and looks from now on what its threads hold.
    fn join_gate(&mut self, bell: i32, letters: i32) -> Result<(), Failed> {
        let gate = self.request.runs[0].address as usize;
        calls::map_shared(gate + BELL_AT, PAGE_BYTES, bell).at(step::GATE)?;
        calls::map_shared(gate + LETTERS_AT, LETTERS_BYTES, letters).at(step::GATE)?;
        open_letters(gate);
        self.gate = gate;
        Ok(())
    }

    fn is_set(&self, flag: u32) -> bool {
        self.request.flags & flag != 0
    }

    // Setting up.

    fn set_up(&mut self, memory: i32, other: i32) -> Result<(), Failed> {
        if memory == NONE {
            return Err(EBADF).at(step::WORDS);
        }
        // A limit of file sizes that could not be raised is to be known now, not when pages move.
        let end = STAGING_BYTES - PAGE_BYTES;
        calls::write_at(memory, self.base, PAGE_BYTES, end).at(step::WRITE)?;
        let barrier = Barrier::of(self.request.flags);
        if self.staging == 0 {
            let staging = match barrier {
                Some(_) => map_shared_staging(memory),
                None => map_staging(),
            };
            self.staging = staging.at(step::STAGING)?;
        }
        self.answer.staging = self.staging as u64;
        let userfaultfd = match barrier {
            Some(_) => NONE,
            None => self.make_userfaultfd(other).at(step::USERFAULTFD)?,
        };
        calls::drop_capabilities().at(step::CAPABILITIES)?;
        let had = calls::control(calls::PR_GET_THP_DISABLE, 0).at(step::HUGE_PAGES)?;
        self.had_none = had != 0;
        filter::install().at(step::FILTER)?;
        (self.memory, self.userfaultfd) = (memory, userfaultfd);
        self.touched = barrier.map(|barrier| Touched { memory: other, barrier });
        self.answer.userfaultfd = userfaultfd;
        self.huge_pages()
    }

    fn make_userfaultfd(&self, other: i32) -> Result<i32, Errno> {
        if self.is_set(flag::USERFAULTFD) {
            return self.owned_userfaultfd(other);
        }
        if !self.is_set(flag::DEVICE) {
            return calls::userfaultfd();
        }
        let made = calls::userfaultfd_of(other);
        let _ = calls::close(other);
        made
    }

    /// The one that was given, if it is this address space's: to move what is not mapped is ENOENT
    /// here, and EINVAL for another's.
    fn owned_userfaultfd(&self, given: i32) -> Result<i32, Errno> {
        let hole = calls::map(PAGE_BYTES)?;
        calls::unmap(hole, PAGE_BYTES)?;
        let (to, from, bytes) = (self.staging as u64, hole as u64, PAGE_BYTES as u64);
        match calls::move_pages(given, to, from, bytes) {
            (_, ENOENT) => Ok(given),
            (_, errno) => {
                let _ = calls::close(given);
                Err(if errno == 0 { EIO } else { errno })
            }
        }
    }

    fn huge_pages(&mut self) -> Result<(), Failed> {
        let off = u32::from(self.is_set(flag::NO_HUGE_PAGES));
        if !self.had_none && off != *self.huge_pages_off {
            calls::control(calls::PR_SET_THP_DISABLE, off as usize).at(step::HUGE_PAGES)?;
            *self.huge_pages_off = off;
        }
        Ok(())
    }

    fn register(&self) -> Result<(), Failed> {
        calls::register(self.userfaultfd, self.staging, STAGING_BYTES).at(step::REGISTER)?;
        Ok(())
    }

    // At work.

    fn batch(&mut self) -> Result<(), Failed> {
        if !self.runs_fit() {
            return Err(EINVAL).at(step::WORDS);
        }
        self.follow();
        let pages = self.move_runs().at(step::PROTECT)?;
        self.answer.pages = pages as u32;
        calls::send(self.channel, &*self.answer).at(step::ANSWER)?;
        if self.touched.is_some() {
            return Ok(());
        }
        calls::write_at(self.memory, self.staging, pages * PAGE_BYTES, 0).at(step::WRITE)?;
        // Whoever touches staging gets zeros there, which would be in the way for ever.
        let is_occupied = self.answer.runs.iter().any(|outcome| outcome.errno == EEXIST);
        // Where the program has locked all that there is, staging takes nothing in.
        let is_refused = self.answer.runs.iter().any(|outcome| outcome.errno == EINVAL);
        if is_refused && pages == 0 {
            calls::unlock(self.staging, STAGING_BYTES).at(step::STAGING)?;
        }
        if pages > 0 || is_occupied {
            self.empty().at(step::EMPTY)?;
        }
        self.protect_staging().at(step::PROTECT)
    }

    /// Goes on on the CPU of who waits for the answer: to wake another one takes longer than all
    /// else here. Where that is not allowed it goes on where it is.
    fn follow(&mut self) {
        if self.cpu != self.request.cpu {
            self.cpu = self.request.cpu;
            let _ = calls::run_on(&self.request.cpus);
        }
    }

    /// Returns true if the runs are there, and fit into staging.
    fn runs_fit(&self) -> bool {
        let count = self.request.count as usize;
        let given = self.request.runs.iter().take(count);
        let pages = given.fold(0u64, |sum, run| sum.saturating_add(run.pages.into()));
        count <= RUNS_MAX && pages <= STAGING_PAGES as u64
    }

    fn empty(&self) -> Result<(), Errno> {
        calls::unregister(self.userfaultfd, self.staging, ANCHOR_AT)?;
        let emptied = calls::advise(self.staging, ANCHOR_AT, calls::MADV_DONTNEED);
        // mlockall has locked it with all that the program has.
        let emptied = emptied.or_else(|_| {
            calls::unlock(self.staging, STAGING_BYTES)?;
            calls::advise(self.staging, ANCHOR_AT, calls::MADV_DONTNEED)
        });
        let registered = calls::register(self.userfaultfd, self.staging, ANCHOR_AT);
        emptied.and(registered).map(drop)
    }

    /// Staging is as at first, whatever was there.
    fn protect_staging(&self) -> Result<(), Errno> {
        let runs = self.request.runs.iter().take(self.request.count as usize);
        if runs.clone().any(|run| run.protection == EXECUTABLE) {
            calls::protect(self.staging, ANCHOR_AT, calls::PROT_READ_WRITE)?;
        }
        Ok(())
    }

    /// Moves the runs one after the other to staging, and returns how many pages came.
    fn move_runs(&mut self) -> Result<usize, Errno> {
        let (mut pages, mut waits) = (0, false);
        let moving = Moving::begin(self.gate);
        let runs = self.request.runs.iter().take(self.request.count as usize);
        for (run, outcome) in runs.zip(&mut self.answer.runs) {
            let to = (self.staging + pages * PAGE_BYTES) as u64;
            let free = Run { pages: moving.free_pages(run), ..*run };
            let (moved, errno) = match (waits, &self.touched, run.protection) {
                (true, ..) => (0, EAGAIN),
                (false, Some(touched), _) => touched.take(&free, to as usize)?,
                (false, None, 0) => move_run(self.userfaultfd, to, &free),
                (false, None, EXECUTABLE) => move_executable(self.userfaultfd, to, &free),
                (false, None, _) => move_protected(self.userfaultfd, to, &free)?,
            };
            let is_held = moved == u64::from(free.pages) && free.pages < run.pages;
            let errno = if is_held { EBUSY } else { errno };
            (outcome.pages, outcome.errno) = (moved as u32, errno);
            pages += moved as usize;
            waits = errno == EAGAIN;
        }
        Ok(pages)
    }

    /// Puts runs back, as far as it goes.
    fn fill(&mut self) -> Result<(), Failed> {
        let Some(touched) = self.touched.as_ref().filter(|_| self.runs_fit()) else {
            return Err(EINVAL).at(step::WORDS);
        };
        let mut at = self.staging;
        let runs = self.request.runs.iter().take(self.request.count as usize);
        for (run, outcome) in runs.zip(&mut self.answer.runs) {
            let (filled, errno) = touched.fill(run, at).at(step::PROTECT)?;
            (outcome.pages, outcome.errno) = (filled as u32, errno);
            at += run.pages as usize * PAGE_BYTES;
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<(), Failed> {
        let touched = self.touched.as_ref().ok_or(EINVAL).at(step::WORDS)?;
        let runs = self.request.runs.iter().take(self.request.count as usize);
        for (run, outcome) in runs.zip(&mut self.answer.runs) {
            let (cleared, errno) = touched.clear(run);
            (outcome.pages, outcome.errno) = (cleared as u32, errno);
        }
        Ok(())
    }

    fn populate(&mut self) -> Result<(), Failed> {
        let count = self.request.count as usize;
        if count > RUNS_MAX {
            return Err(EINVAL).at(step::WORDS);
        }
        for (run, outcome) in self.request.runs.iter().take(count).zip(&mut self.answer.runs) {
            populate_run(run, outcome);
        }
        Ok(())
    }

    // Leaving.

    /// Undoes what the agent has done to the address space.
    fn let_go(&mut self) -> Result<(), Failed> {
        if self.staging == 0 {
            return Ok(());
        }
        // A mapping that is registered makes an event when it goes, and waits for its reader.
        let _ = calls::unregister(self.userfaultfd, self.staging, STAGING_BYTES);
        let unmapped = calls::unmap(self.staging, STAGING_BYTES).at(step::STAGING);
        self.request.flags = 0;
        let restored = self.huge_pages();
        let _ = (calls::close(self.userfaultfd), calls::close(self.memory));
        unmapped.and(restored)
    }
}

fn map_staging() -> Result<usize, Errno> {
    let staging = calls::map(STAGING_BYTES)?;
    advise_staging(staging)?;
    calls::unlock(staging, STAGING_BYTES)?;
    Ok(staging)
}

/// As [`map_staging`], of the memory file itself.
fn map_shared_staging(memory: i32) -> Result<usize, Errno> {
    let staging = calls::map_file(STAGING_BYTES, memory)?;
    advise_staging(staging)?;
    Ok(staging)
}

fn advise_staging(staging: usize) -> Result<(), Errno> {
    for advice in [calls::MADV_NOHUGEPAGE, calls::MADV_DONTFORK, calls::MADV_DONTDUMP] {
        // A kernel without huge pages has no such advice to take.
        match calls::advise(staging, STAGING_BYTES, advice) {
            Err(EINVAL) if advice == calls::MADV_NOHUGEPAGE => {}
            advised => _ = advised?,
        }
    }
    Ok(())
}

/// As [`move_run`], of memory that can be executed: both sides must be alike.
fn move_executable(userfaultfd: i32, to: u64, run: &Run) -> (u64, Errno) {
    let bytes = run.pages as usize * PAGE_BYTES;
    match calls::protect(to as usize, bytes, calls::PROT_ALL) {
        Ok(_) => move_run(userfaultfd, to, run),
        Err(errno) => (0, errno),
    }
}

/// As [`move_run`], of memory that cannot be written. An error of this: what may be done with it is
/// another thing now.
fn move_protected(userfaultfd: i32, to: u64, run: &Run) -> Result<(u64, Errno), Errno> {
    let (start, bytes) = (run.address as usize, run.pages as usize * PAGE_BYTES);
    if let Err(errno) = calls::protect(start, bytes, calls::PROT_READ_WRITE) {
        return Ok((0, errno));
    }
    let moved = move_run(userfaultfd, to, run);
    calls::protect(start, bytes, (run.protection & !PROTECTED) as usize)?;
    Ok(moved)
}

/// Moves a run as far as it goes. Returns the pages that were moved, and what stopped it.
fn move_run(userfaultfd: i32, to: u64, run: &Run) -> (u64, Errno) {
    let page = PAGE_BYTES as u64;
    let all = u64::from(run.pages);
    let (mut done, mut most) = (0, all);
    while done < all {
        let pages = u64::min(most, all - done);
        let from = run.address.wrapping_add(done * page);
        let (bytes, errno) = calls::move_pages(userfaultfd, to + done * page, from, pages * page);
        done += bytes / page;
        most = match errno {
            // What is left may be another mapping; why it stopped, the next call says.
            _ if bytes > 0 => all,
            EEXIST if has_moved(from) => {
                done += 1;
                all
            }
            // The run may cross the border of two mappings.
            EINVAL if pages > 1 => pages / 2,
            0 => return (done, EIO),
            errno => return (done, errno),
        };
    }
    (done, 0)
}

/// True if a page that was to move to where there is something has moved there: staging was empty,
/// and Linux 6.18 does not count all that it moves (docs/kernel-report.md). It is false if somebody
/// has touched staging: then the page is where it was.
fn has_moved(from: u64) -> bool {
    !calls::is_there(from as usize)
}

fn populate_run(run: &Run, outcome: &mut Outcome) {
    let (start, bytes) = (run.address as usize, run.pages as usize * PAGE_BYTES);
    match calls::advise(start, bytes, calls::MADV_POPULATE_WRITE) {
        Ok(_) => outcome.pages = run.pages,
        Err(errno) => outcome.errno = errno,
    }
}
