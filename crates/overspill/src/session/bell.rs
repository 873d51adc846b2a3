//! How a member sleeps until it is asked for frames, or told of swap that was added.

use super::Session;
use super::budget::{Book, Word};
use super::members::lower_half;
use overspill_area::MemberNo;
use overspill_base::clock;
use overspill_base::sync::Ordering::Relaxed;
use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

impl Book {
    /// Wakes a member that waits to be asked.
    pub(super) fn ring(&self, member: MemberNo) {
        let bell = self.word(member, Word::Bell);
        bell.fetch_add(1, Relaxed);
        let _ = futex::wake(lower_half(bell), futex::Flags::empty(), 1);
    }
}

impl Session {
    /// Counts the questions that `member` was asked.
    pub fn bell(&self, member: MemberNo) -> u32 {
        self.book().word(member, Word::Bell).load(Relaxed) as u32
    }

    /// Sleeps until `member` was asked more than `seen` questions, or `word` is woken or is not
    /// `value`; or for `most`, and where the kernel cannot wait for both for `limit`.
    pub fn wait_for_bell(
        &self,
        member: MemberNo,
        seen: u32,
        (word, value): (&AtomicU32, u32),
        limit: Timespec,
        most: Duration,
    ) {
        let book = self.book();
        let on = |word: &AtomicU32, value: u32| {
            let mut wait = futex::Wait::new();
            wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
            (wait.val, wait.flags) = (u64::from(value), futex::WaitFlags::SIZE_U32);
            wait
        };
        let bell = lower_half(book.word(member, Word::Bell));
        let both = [on(bell, seen), on(word, value)];
        let flags = futex::WaitvFlags::empty();
        let until = Duration::from_nanos(clock::now_ns()) + most;
        let until = Timespec::try_from(until).ok();
        match futex::waitv(&both, flags, until.as_ref(), futex::ClockId::Monotonic) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
            Err(_) => {
                let _ = futex::wait(word, futex::Flags::empty(), value, Some(&limit));
            }
        }
    }
}
