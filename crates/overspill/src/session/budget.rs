//! The run's memory, which its members lease from each other.
//!
//! Owns: the owners of *shares*, runs of a few frames each, and an account for every member.
//! Invariants: a share has one owner at a time, whose number is in the share's word. Nobody has a
//! lock, and what a killed member had leased is given back by [`Session::release_frames`], which
//! may be cut short by another kill and repeated. So no frame of the run is ever lost.
//! Shares above the present limit are *reserved*: free, and leased by nobody.
//! Every member starts with [`FLOOR_FRAMES`]: with fewer it could serve no fault. If the run has
//! no share left for a new one, they are *overdrawn*: leased beyond the limit. So are those of a
//! forked child, and the frames of the pages that it has in memory; most of these are its parent's
//! too. How much memory overdrawn frames really take is found out by the supervisor
//! ([`audit`](super::audit)), which keeps as many reserved too.
//! Not here: when a member leases, asks and gives back (`engine::lease`); who is alive
//! ([`members`](super::members)).
//! Rejected: a count of free frames. A member that is killed between changing the count and its own
//! account would leave the two at odds for good.
//!
//! ```text
//! share: 0 ──lease (one that finds it 0)──> member + 1 ──give_back, release──> 0
//! ```
//!
//! Orderings: relaxed. A share is a right; no memory goes with it. `asked` releases what the asker
//! did before to the thread that is woken, by the futex.

use super::Session;
use super::members::lower_half;
use super::pressure::MemberPressure;
use overspill_area::{MEMBERS_MAX, MemberNo};
use overspill_base::clock;
use overspill_base::shared::Table;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{Arc, AtomicU32, AtomicU64, LockClass, Mutex};
use overspill_engine::{Asked, FrameBudget, RefaultCounts};
use rustix::event::Timespec;
use rustix::thread::futex;

/// Shares of a run, at most: a search for a free one reads their words.
const SHARES_MAX: usize = 1 << 14;
/// Frames of a share, at least.
const SHARE_FRAMES_MIN: usize = 16;
/// One in so many tries searches although no share is counted as free.
const SEARCH_ANYWAY: u32 = 64;
/// Frames that every member has.
const FLOOR_FRAMES: usize = 64;

/// A member is asked if its pressure is below this part of the asker's.
const CLEARLY_LESS: f32 = 0.75;
/// Time for which a member is left alone that could not give back what it was asked for.
const DECLINED_MS: u32 = 1000;

/// Words of the whole run.
#[derive(Clone, Copy)]
enum Total {
    /// About how many shares are free. A kill, or a search beside others, can leave it wrong until
    /// they are counted again.
    FreeShares,
    /// Frames that must stay free.
    Reserved,
    /// Counts members that have overdrawn, and changes of the limit; a futex.
    Unsettled,
    /// Frames that all members together may have.
    Limit,
}

const TOTALS: usize = 4;

/// Words of a member's account.
#[derive(Clone, Copy)]
pub(super) enum Word {
    /// Frames leased.
    Leased,
    /// Those of them that are overdrawn.
    Overdrawn,
    /// Pages in memory that other processes have too, as far as is known.
    Shared,
    /// Frames that others ask for.
    Asked,
    /// When it declined, in ms; 0 if it has not.
    Declined,
    /// The address of its managed range.
    Range,
    /// Counts questions; a futex.
    Bell,
    /// The first of [`MemberPressure`].
    Pressure,
}

const ACCOUNT_WORDS: usize = Word::Pressure as usize + MemberPressure::WORDS;
/// The part of what a member has that it is asked for at a time, so that what it then suffers is
/// seen before it is asked for more.
const ASKED_PART: usize = 8;

/// Bytes of the tables in the session's file.
#[derive(Debug, Clone, Copy)]
pub(super) struct BudgetLayout {
    pub(super) share_frames: usize,
    pub(super) shares: usize,
}

impl BudgetLayout {
    /// The layout for a limit of `frames`.
    pub(super) fn of(frames: usize) -> Self {
        let share_frames = frames.div_ceil(SHARES_MAX).max(SHARE_FRAMES_MIN);
        Self { share_frames, shares: frames / share_frames }
    }

    pub(super) fn owner_bytes(self) -> usize {
        self.shares * 4
    }

    pub(super) const TOTAL_BYTES: usize = TOTALS * 8;
    pub(super) const ACCOUNT_BYTES: usize = MEMBERS_MAX * ACCOUNT_WORDS * 8;
}

fn now_ms() -> u32 {
    (clock::now_ns() / 1_000_000) as u32
}

/// What all members see.
#[derive(Debug, Clone)]
pub(super) struct Book {
    share_frames: usize,
    owners: Table<AtomicU32>,
    totals: Table<AtomicU64>,
    accounts: Table<AtomicU64>,
}

impl Book {
    pub(super) fn word(&self, member: MemberNo, word: Word) -> &AtomicU64 {
        &self.accounts[member.0 as usize * ACCOUNT_WORDS + word as usize]
    }

    fn get(&self, member: MemberNo, word: Word) -> usize {
        self.word(member, word).load(Relaxed) as usize
    }

    fn set(&self, member: MemberNo, word: Word, frames: usize) {
        self.word(member, word).store(frames as u64, Relaxed);
    }

    /// What a member needs.
    fn pressure(&self, member: MemberNo) -> MemberPressure<'_> {
        let first = member.0 as usize * ACCOUNT_WORDS + Word::Pressure as usize;
        MemberPressure(&self.accounts[first..first + MemberPressure::WORDS])
    }

    fn total(&self, total: Total) -> &AtomicU64 {
        &self.totals[total as usize]
    }

    /// The frames that nobody has leased, about.
    pub(super) fn free_frames(&self) -> usize {
        self.total(Total::FreeShares).load(Relaxed) as usize * self.share_frames
    }

    /// Keeps `frames` free from now on.
    pub(super) fn reserve(&self, frames: usize) {
        self.total(Total::Reserved).store(frames as u64, Relaxed);
    }

    /// All frames that there are shares for.
    pub(super) fn frames(&self) -> usize {
        self.owners.len() * self.share_frames
    }

    /// The frames that all members together may have now.
    pub(super) fn limit(&self) -> usize {
        self.total(Total::Limit).load(Relaxed) as usize
    }

    /// Changes what all members together may have; the auditor holds them to it.
    pub(super) fn set_limit(&self, frames: usize) {
        self.total(Total::Limit).store(frames as u64, Relaxed);
        self.tell_unsettled();
    }

    /// The frames that a member has leased, and those of them that are overdrawn.
    pub(super) fn leased(&self, member: MemberNo) -> (usize, usize) {
        (self.get(member, Word::Leased), self.get(member, Word::Overdrawn))
    }

    /// Notes where a member's managed range begins.
    pub(super) fn set_range(&self, member: MemberNo, start: usize) {
        self.set(member, Word::Range, start);
    }

    /// Returns where a member's managed range begins; 0 if it has none yet.
    pub(super) fn range(&self, member: MemberNo) -> usize {
        self.get(member, Word::Range)
    }

    /// Notes how many pages a member shares with others.
    pub(super) fn set_shared(&self, member: MemberNo, frames: usize) {
        self.set(member, Word::Shared, frames);
    }

    /// The frames that a member is asked for.
    pub(super) fn asked(&self, member: MemberNo) -> usize {
        self.get(member, Word::Asked)
    }

    /// Waits until there is more to settle than `seen`, or for `limit`; returns what there is.
    pub(super) fn wait_for_unsettled(&self, seen: u64, limit: Option<&Timespec>) -> u64 {
        let count = self.total(Total::Unsettled);
        if count.load(Relaxed) == seen {
            let _ = futex::wait(lower_half(count), futex::Flags::empty(), seen as u32, limit);
        }
        count.load(Relaxed)
    }

    /// Wakes the auditor.
    fn tell_unsettled(&self) {
        let count = self.total(Total::Unsettled);
        count.fetch_add(1, Relaxed);
        let _ = futex::wake(lower_half(count), futex::Flags::empty(), 1);
    }

    /// Takes up to `most` free shares for `member`, adding them to `to`, unless they are reserved.
    /// Counts what is free if there seems to be nothing, and `anyway`.
    fn take(&self, member: MemberNo, most: usize, anyway: bool, to: &mut Vec<u32>) {
        let mut seen = self.total(Total::FreeShares).load(Relaxed);
        let reserved = self.total(Total::Reserved).load(Relaxed).div_ceil(self.share_frames as u64);
        if seen <= reserved && anyway {
            seen = self.recount();
        }
        let most = most.min(seen.saturating_sub(reserved) as usize);
        if most == 0 {
            return;
        }
        // Members begin in different places, and a process goes on after what it took last.
        let len = self.owners.len();
        let spread = member.0 as usize * (len / 8 + 1);
        let start = to.last().map_or(spread, |&last| last as usize + 1);
        let (before, owner) = (to.len(), member.0 + 1);
        for share in (start..start + len).map(|n| n % len) {
            if to.len() - before == most {
                break;
            }
            let word = &self.owners[share];
            if word.load(Relaxed) == 0 && word.compare_exchange(0, owner, Relaxed, Relaxed).is_ok()
            {
                to.push(share as u32);
            }
        }
        let taken = to.len() - before;
        // After a search in vain all that was counted is not there.
        let gone = if taken < most { seen.max(taken as u64) } else { taken as u64 };
        self.count_free(|free| free.saturating_sub(gone));
    }

    /// Counts the free shares, and returns how many there are.
    pub(super) fn recount(&self) -> u64 {
        let total = self.total(Total::FreeShares);
        let before = total.load(Relaxed);
        let free = self.owners.iter().filter(|owner| owner.load(Relaxed) == 0).count() as u64;
        // Others have changed it meanwhile: the next will count.
        let _ = total.compare_exchange(before, free, Relaxed, Relaxed);
        free
    }

    fn count_free(&self, change: impl Fn(u64) -> u64) {
        let free = self.total(Total::FreeShares);
        let _ = free.fetch_update(Relaxed, Relaxed, |free| Some(change(free)));
    }

    fn free(&self, shares: impl Iterator<Item = u32>) {
        let freed = shares.inspect(|&share| self.owners[share as usize].store(0, Relaxed)).count();
        self.count_free(|free| free + freed as u64);
    }

    /// Gives back all that a member has leased.
    fn release(&self, member: MemberNo) {
        let had_overdrawn = self.get(member, Word::Overdrawn) > 0;
        use Word::{Asked, Declined, Leased, Overdrawn, Range, Shared};
        for word in [Asked, Leased, Overdrawn, Shared, Declined, Range] {
            self.set(member, word, 0);
        }
        self.pressure(member).clear();
        let owned = |word: &AtomicU32| word.load(Relaxed) == member.0 + 1;
        let all = self.owners.iter().enumerate().filter(|(_, word)| owned(word));
        self.free(all.map(|(share, _)| share as u32));
        if had_overdrawn {
            self.tell_unsettled();
        }
    }

    /// The one of `members` that needs its frames least, of those whose pressure is clearly less
    /// than `pressure`. With infinite pressure even one whose pages are others' too.
    pub(super) fn giver(&self, members: &[MemberNo], pressure: f32) -> Option<MemberNo> {
        self.giver_of(members, pressure, false).or_else(|| {
            pressure.is_infinite().then(|| self.giver_of(members, pressure, true)).flatten()
        })
    }

    fn giver_of(&self, members: &[MemberNo], pressure: f32, shared: bool) -> Option<MemberNo> {
        let now = now_ms();
        let has_declined = |member| match self.get(member, Word::Declined) as u32 {
            0 => false,
            at_ms => now.wrapping_sub(at_ms) < DECLINED_MS,
        };
        let able = members.iter().copied();
        let able = able.filter(|&it| self.to_give(it, shared) > 0 && !has_declined(it));
        let pressed = able.map(|other| (self.pressure(other).at(now), other));
        let less = pressed.filter(|&(other, _)| other <= pressure * CLEARLY_LESS);
        // Of equals the one with most.
        let most_first = |member| std::cmp::Reverse(self.to_give(member, shared));
        less.min_by(|a, b| a.0.total_cmp(&b.0).then_with(|| most_first(a.1).cmp(&most_first(b.1))))
            .map(|(_, member)| member)
    }

    /// Asks all members for `frames` together, in proportion to what each can give.
    pub(super) fn ask_all(&self, members: &[MemberNo], frames: usize) {
        let sum = |shared| members.iter().map(|&member| self.to_give(member, shared)).sum();
        let (own, all): (usize, usize) = (sum(false), sum(true));
        // What they share is only asked for if the rest is not enough.
        let (shared, sum) = if own >= frames { (false, own) } else { (true, all) };
        let mut left = frames;
        for &member in members {
            let part = (self.to_give(member, shared) * frames).div_ceil(sum.max(1)).min(left);
            if part > 0 {
                left = left.saturating_sub(self.ask(member, part));
            }
        }
    }

    /// Asks a member for about `frames`; returns for how many.
    pub(super) fn ask(&self, member: MemberNo, frames: usize) -> usize {
        let most = self.to_give(member, true).min(frames.next_multiple_of(self.share_frames));
        self.word(member, Word::Asked).fetch_add(most as u64, Relaxed);
        self.ring(member);
        most
    }

    /// Of `most` frames those that a member can give back: whole shares, and overdrawn ones.
    fn payable(&self, member: MemberNo, most: usize) -> (usize, usize) {
        let (leased, overdrawn) = self.leased(member);
        let most = most.min(leased.saturating_sub(FLOOR_FRAMES));
        let shares = leased.saturating_sub(overdrawn) / self.share_frames;
        let freed = (most / self.share_frames).min(shares) * self.share_frames;
        (freed, (most - freed).min(overdrawn))
    }

    /// Frames that a member could still be asked for. A `shared` page gives memory only if all who
    /// have it give it.
    fn to_give(&self, member: MemberNo, shared: bool) -> usize {
        let held = FLOOR_FRAMES + self.get(member, Word::Asked);
        let kept = if shared { 0 } else { self.get(member, Word::Shared) };
        self.get(member, Word::Leased).saturating_sub(held + kept)
    }
}

/// The frames of one member.
#[derive(Debug)]
pub(super) struct MemberFrames {
    session: Arc<Session>,
    book: Book,
    member: AtomicU32,
    shares: Mutex<Vec<u32>>,
    /// Tries to lease.
    tries: AtomicU32,
}

impl MemberFrames {
    fn member(&self) -> MemberNo {
        MemberNo(self.member.load(Relaxed))
    }

    fn add(&self, word: Word, more: isize) {
        let word = self.book.word(self.member(), word);
        let _ = word.fetch_update(Relaxed, Relaxed, |n| Some(n.saturating_add_signed(more as i64)));
    }
}

impl FrameBudget for MemberFrames {
    fn lease(&self, want: usize, most: usize) -> usize {
        let (book, me) = (&self.book, self.member());
        let mut shares = self.shares.lock();
        let before = shares.len();
        let anyway = self.tries.fetch_add(1, Relaxed).is_multiple_of(SEARCH_ANYWAY);
        let wanted = want.div_ceil(book.share_frames).min(most / book.share_frames);
        book.take(me, wanted, anyway, &mut shares);
        let got = (shares.len() - before) * book.share_frames;
        let leased = book.get(me, Word::Leased) + got;
        let overdrawn = FLOOR_FRAMES.saturating_sub(leased);
        book.set(me, Word::Leased, leased + overdrawn);
        if overdrawn > 0 {
            self.add(Word::Overdrawn, overdrawn as isize);
            book.tell_unsettled();
        }
        got + overdrawn
    }

    fn limit(&self) -> usize {
        self.book.limit()
    }

    fn give_back(&self, most: usize) -> usize {
        let (book, me) = (&self.book, self.member());
        let mut shares = self.shares.lock();
        let (freed, paid) = book.payable(me, most);
        let (given, kept) = (freed + paid, shares.len() - freed / book.share_frames);
        self.add(Word::Overdrawn, -(paid as isize));
        self.add(Word::Leased, -(given as isize));
        self.add(Word::Asked, -(given as isize));
        book.free(shares.drain(kept..));
        if paid > 0 {
            book.tell_unsettled();
        }
        given
    }

    fn asked(&self) -> usize {
        let (book, me) = (&self.book, self.member());
        let asked = book.get(me, Word::Asked);
        let (freed, paid) = book.payable(me, asked);
        if asked > 0 && freed + paid == 0 {
            // Less than a share, or what it must keep.
            self.add(Word::Asked, -(asked as isize));
        }
        freed + paid
    }

    fn decline(&self) {
        let (book, me) = (&self.book, self.member());
        book.set(me, Word::Asked, 0);
        book.set(me, Word::Declined, now_ms().max(1) as usize);
    }

    fn ask(&self, frames: usize, more: &RefaultCounts, starving: bool) -> Asked {
        let (book, me) = (&self.book, self.member());
        book.pressure(me).add(more, now_ms());
        let mine = if starving { f32::INFINITY } else { book.pressure(me).at(now_ms()) };
        let others = self.session.pagers().map(|(member, _)| member).filter(|&other| other != me);
        let others = others.collect::<Vec<_>>();
        let Some(giver) = book.giver(&others, mine) else {
            // One that was killed while it was asked for all it had gives nothing any more.
            let is_dead = |&member: &MemberNo| {
                book.get(member, Word::Asked) > 0 && !self.session.is_alive(member)
            };
            return if others.iter().any(is_dead) { Asked::Dead } else { Asked::Nobody };
        };
        if !self.session.is_alive(giver) {
            return Asked::Dead;
        }
        let part = book.get(giver, Word::Leased) / ASKED_PART;
        book.ask(giver, if starving { frames } else { frames.min(part) });
        Asked::One
    }

    fn become_member(&self, member: MemberNo, frames: usize, most: usize) -> usize {
        self.shares.lock().clear();
        self.book.set(member, Word::Range, self.book.get(self.member(), Word::Range));
        self.member.store(member.0, Relaxed);
        let more = FLOOR_FRAMES.min(most);
        self.book.set(member, Word::Leased, frames + more);
        self.book.set(member, Word::Overdrawn, frames + more);
        self.book.set(member, Word::Shared, frames);
        self.book.tell_unsettled();
        more
    }
}

impl Session {
    pub(super) fn book(&self) -> Book {
        let layout = self.layout.budget;
        Book {
            share_frames: layout.share_frames,
            owners: self.table(self.layout.shares, layout.shares),
            totals: self.table(self.layout.totals, TOTALS),
            accounts: self.table(self.layout.accounts, MEMBERS_MAX * ACCOUNT_WORDS),
        }
    }

    /// Makes all shares free, and reserves those above the limit.
    pub(super) fn format_budget(&self) {
        let book = self.book();
        book.count_free(|_| self.layout.budget.shares as u64);
        book.set_limit(self.settings.frames());
        book.reserve(book.frames().saturating_sub(book.limit()));
    }

    /// The frames of a new member.
    pub(super) fn frames_of(self: &Arc<Self>, member: MemberNo) -> Arc<dyn FrameBudget> {
        Arc::new(MemberFrames {
            session: self.clone(),
            book: self.book(),
            member: AtomicU32::new(member.0),
            shares: Mutex::new(LockClass::Control, Vec::new()),
            tries: AtomicU32::new(0),
        })
    }

    /// Gives back what a member has leased that pages no more.
    pub(super) fn release_frames(&self, member: MemberNo) {
        self.book().release(member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_base::shared::Mapping;

    fn book(frames: usize) -> Book {
        let layout = BudgetLayout::of(frames);
        let private = |bytes| std::sync::Arc::new(Mapping::private(bytes).unwrap());
        let book = Book {
            share_frames: layout.share_frames,
            owners: Table::within(&private(layout.owner_bytes()), 0, layout.shares),
            totals: Table::within(&private(BudgetLayout::TOTAL_BYTES), 0, TOTALS),
            accounts: Table::within(
                &private(BudgetLayout::ACCOUNT_BYTES),
                0,
                MEMBERS_MAX * ACCOUNT_WORDS,
            ),
        };
        book.count_free(|_| layout.shares as u64);
        book
    }

    #[test]
    fn shares_are_taken_once_and_found_again_when_they_are_free() {
        let book = book(10 * SHARE_FRAMES_MIN);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        book.take(MemberNo(0), 7, false, &mut a);
        book.take(MemberNo(1), 7, false, &mut b);
        assert_eq!((a.len(), b.len()), (7, 3));
        assert!(a.iter().all(|share| !b.contains(share)));
        book.free(a.drain(5..));
        book.take(MemberNo(1), 7, false, &mut b);
        assert_eq!(b.len(), 5);
        assert_eq!(book.free_frames(), 0);
    }

    #[test]
    fn what_a_dead_member_had_is_given_back_even_if_that_is_repeated() {
        let book = book(10 * SHARE_FRAMES_MIN);
        let mut shares = Vec::new();
        book.take(MemberNo(3), 4, false, &mut shares);
        // Cut short.
        book.owners[shares[0] as usize].store(0, Relaxed);
        book.release(MemberNo(3));
        book.release(MemberNo(3));
        let mut all = Vec::new();
        book.take(MemberNo(0), 10, false, &mut all);
        // What was not counted is found when there seems to be nothing.
        book.take(MemberNo(0), 10, true, &mut all);
        assert_eq!(all.len(), 10);
    }

    /// What counts is what a frame more would save. The first lacks a few frames for a loop, the
    /// second would refault a little less with every frame more; they refault equally often.
    #[test]
    fn a_few_frames_that_save_all_count_more_than_many_that_save_little() {
        let book = book(1 << 14);
        let (few, many) = (MemberNo(0), MemberNo(1));
        let now = now_ms();
        for (member, within) in [(few, [800, 800, 800, 0]), (many, [800, 400, 200, 100])] {
            book.pressure(member).add(&RefaultCounts { evictions: 800, within }, now);
            book.set(member, Word::Leased, 1 << 13);
        }
        let (few_has, many_has) = (book.pressure(few).at(now), book.pressure(many).at(now));
        assert_eq!(book.giver(&[many], few_has), Some(many));
        assert_eq!(book.giver(&[few], many_has), None);
    }

    #[test]
    fn the_largest_limits_have_no_more_shares() {
        for frames in [256, 1 << 17, (1 << 24) - 1] {
            let layout = BudgetLayout::of(frames);
            assert!(layout.shares <= SHARES_MAX && layout.shares > 0);
            assert!(frames - layout.shares * layout.share_frames < layout.share_frames);
        }
    }
}
