//! A pager over the model of `pages`, which does what the keeper does.
//!
//! Owns: the map, what is out, and what may be done next.

use super::Endless;
use super::pages::{Call, Entry, Kernel, PAGES, Page, indices, place};
use crate::Vpn;
use crate::map::{AtAddress, Event, Look, Pages, SpaceMap, Witness};
use fastrand::Rng;
use overspill_base::PageNo;
use std::collections::HashMap;
use std::ops::Range;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Enter(usize, Call),
    GoOn(usize),
    Read,
    Settle,
    Register(Range<usize>),
    Confirm,
    Bind(usize),
    /// These go out; the thread enters the call before they are marked.
    Evict(Range<usize>, Option<(usize, Call)>),
    Fill(usize),
    Write(usize, usize),
    LookAtDoomed,
}

/// What a touch needs.
#[derive(Debug)]
enum Need {
    Content(u32),
    Zeros,
    Nothing,
    Later,
    /// It is out, and nothing is known of it.
    Lost,
}

struct Asked<'a>(&'a Kernel);

impl Asked<'_> {
    fn is_one_registered(&self, pages: Range<usize>) -> bool {
        self.0.is_registered(pages.clone()) && self.0.is_one_mapping(pages)
    }
}

impl Witness for Asked<'_> {
    fn look(&mut self, place: &Range<Vpn>) -> Look {
        match self.0.is_changing() {
            true => Look::Changing,
            false if self.is_one_registered(indices(place)) => Look::Registered,
            false => Look::NotRegistered,
        }
    }

    fn pages(&mut self, place: &Range<Vpn>) -> Pages {
        let pages = &self.0.pages[indices(place)];
        let has = |entry| pages.iter().flatten().any(|page| page.entry == entry);
        Pages { present: has(Entry::Present), marked: has(Entry::Marked) }
    }
}

#[derive(Clone)]
pub(super) struct World {
    kernel: Kernel,
    map: SpaceMap,
    source: Endless,
    /// What the engine has of pages that are out.
    store: HashMap<PageNo, u32>,
    /// Registered, and not yet believed: a mapping, and what was not known of it.
    pub(super) candidate: Option<(Range<usize>, Vec<Range<Vpn>>)>,
    /// See `orders`.
    grace: Option<Vec<bool>>,
    pub(super) threads: usize,
    written: u32,
}

fn one(page: usize) -> Range<Vpn> {
    place(&(page..page + 1))
}

impl World {
    /// Each thread has three registered pages, of which nothing is known.
    pub(super) fn new(rng: &mut Rng) -> Self {
        let threads = rng.usize(2..=3);
        let mut kernel = Kernel::new(threads, rng.bool());
        let mut map = SpaceMap::new();
        for thread in 0..threads {
            let pages = 3 * thread..3 * thread + 3;
            kernel.give(thread, pages.clone());
            map.believe(place(&pages));
        }
        let (source, store) = (Endless::default(), HashMap::new());
        let (candidate, grace, written) = (None, None, 0);
        Self { kernel, map, source, store, candidate, grace, threads, written }
    }

    pub(super) fn may_take(&self, step: &Step) -> bool {
        match step {
            // See `may_grow_into`.
            Step::Evict(_, Some((_, call))) if call.grows() => false,
            Step::Enter(thread, call) | Step::Evict(_, Some((thread, call))) => {
                self.may_enter(*thread) && self.may_make(*thread, call)
            }
            Step::GoOn(thread) => self.kernel.can_go_on(*thread),
            Step::Register(mapping) => self.may_register(mapping),
            Step::Confirm => self.candidate.is_some(),
            Step::Bind(page) => self.map.at(Vpn(*page as u64)) == AtAddress::Unbound,
            Step::Write(thread, page) => self.may_write(*thread, *page),
            _ => true,
        }
    }

    fn may_enter(&self, thread: usize) -> bool {
        let is_stopped = self.grace.as_ref().is_some_and(|grace| !grace[thread]);
        !is_stopped && !self.kernel.is_in_call(thread)
    }

    fn may_make(&self, thread: usize, call: &Call) -> bool {
        let kernel = &self.kernel;
        match call {
            Call::Map(pages) => kernel.may_replace(thread, pages.clone()),
            Call::FailToMapOver(pages)
            | Call::Unmap(pages)
            | Call::DontNeed(pages)
            | Call::Protect(pages) => kernel.owns(thread, pages.clone()),
            Call::Move { from, to, len } => {
                let is_apart = to + len <= from.start || from.end <= *to;
                self.may_move(thread, from)
                    && is_apart
                    && kernel.may_replace(thread, *to..to + len)
                    && (*len <= from.len() || self.may_grow_into(&(to + from.len()..to + len)))
            }
            Call::MoveAndStay(from, to) => {
                let is_alone = (0..self.threads).all(|thread| !kernel.is_in_call(thread));
                self.may_move(thread, from) && is_alone && kernel.is_free(*to..to + from.len())
            }
            Call::GrowInto(pages) => {
                self.may_grow_into(pages)
                    && pages.start > 0
                    && kernel.owns(thread, pages.start - 1..pages.start)
                    && kernel.is_free(pages.clone())
            }
        }
    }

    /// A silent growth cannot be told from what was there before where content could not be marked
    /// yet.
    fn may_grow_into(&self, pages: &Range<usize>) -> bool {
        let SpaceMap { live, aside, limbo, .. } = &self.map;
        let waiting = limbo.iter().flat_map(|waiting| &waiting.claims);
        let mut all = waiting.chain(aside).chain([live]);
        !all.any(|contents| contents.unmarked.overlaps(&place(pages)))
    }

    fn may_move(&self, thread: usize, from: &Range<usize>) -> bool {
        self.kernel.owns(thread, from.clone()) && self.kernel.is_one_mapping(from.clone())
    }

    fn may_write(&self, thread: usize, page: usize) -> bool {
        let mapped = self.kernel.pages[page];
        self.kernel.owns(thread, page..page + 1)
            && !self.kernel.is_in_call(thread)
            && mapped.is_some_and(|page| page.entry == Entry::Present || !page.is_registered)
    }

    /// Returns the mapping that a page is in.
    pub(super) fn mapping_at(&self, page: usize) -> Range<usize> {
        let joins = |pages: Range<usize>| self.kernel.is_one_mapping(pages);
        let start = (0..=page).rev().take_while(|&start| joins(start..page + 1)).last();
        let end = (page + 1..=PAGES).take_while(|&end| joins(page..end)).last();
        start.unwrap_or(page)..end.unwrap_or(page)
    }

    fn may_register(&self, mapping: &Range<usize>) -> bool {
        let is_whole = !mapping.is_empty() && self.mapping_at(mapping.start) == *mapping;
        let place = place(mapping);
        let is_settled = self.map.is_settled(&place);
        is_whole && is_settled && !self.map.unknown(&place).is_empty()
    }

    pub(super) fn take(&mut self, step: &Step) -> Result<(), String> {
        match step.clone() {
            Step::Enter(thread, call) => self.enter(thread, &call),
            Step::GoOn(thread) => self.kernel.go_on(thread),
            Step::Read => self.read(),
            Step::Settle => self.settle(),
            Step::Register(mapping) => self.register(mapping),
            Step::Confirm => self.confirm(),
            Step::Bind(page) => self.bind(page),
            Step::Evict(run, call) => self.evict(run, call),
            Step::Fill(page) => self.fill(page)?,
            Step::Write(_, page) => self.write(page),
            Step::LookAtDoomed => self.look_at_doomed(),
        }
        self.hold_threads();
        self.discard_forgotten();
        Ok(())
    }

    fn enter(&mut self, thread: usize, call: &Call) {
        if let Some(grace) = &mut self.grace {
            grace[thread] = false;
        }
        self.kernel.enter(thread, call);
    }

    fn read(&mut self) {
        let Some(event) = self.kernel.read() else { return };
        self.map.apply(&event);
        self.candidate = self.candidate.take().filter(|(at, _)| !event.concerns(&place(at)));
        if let Event::Removed(place) = event {
            let there = |&page: &usize| self.entry(page) != Entry::Nothing;
            let there: Vec<usize> = indices(&place).filter(there).collect();
            there.into_iter().for_each(|page| self.map.doom(one(page)));
        }
    }

    fn entry(&self, page: usize) -> Entry {
        self.kernel.pages[page].map_or(Entry::Nothing, |page| page.entry)
    }

    fn settle(&mut self) {
        if self.map.is_in_doubt() {
            self.map.settle(&mut Asked(&self.kernel));
        }
        let unmarked: Vec<_> = self.map.unmarked(&place(&(0..PAGES))).collect();
        unmarked.into_iter().for_each(|run| self.mark(run));
    }

    /// Pages that are absent get marks, whatever they are.
    fn mark(&mut self, run: Range<Vpn>) {
        let pages = indices(&run);
        if self.kernel.is_changing() || !self.kernel.is_registered(pages.clone()) {
            return self.map.leave_unmarked(run);
        }
        self.map.marked(run);
        let absent = self.kernel.pages[pages].iter_mut().flatten();
        absent.filter(|page| page.entry == Entry::Nothing).for_each(|p| p.entry = Entry::Marked);
    }

    fn register(&mut self, mapping: Range<usize>) {
        let unknown = self.map.unknown(&place(&mapping));
        self.kernel.pages[mapping.clone()]
            .iter_mut()
            .flatten()
            .for_each(|p| p.is_registered = true);
        unknown.iter().for_each(|part| self.map.doubt(part.clone()));
        self.candidate = Some((mapping, unknown));
    }

    fn confirm(&mut self) {
        let (mapping, unknown) = self.candidate.take().expect("a candidate");
        if Asked(&self.kernel).look(&place(&mapping)) == Look::Registered {
            unknown.into_iter().for_each(|part| self.map.believe(part));
        }
    }

    fn bind(&mut self, page: usize) {
        self.map
            .bind(Vpn(page as u64), &(Vpn(0)..Vpn(u64::MAX)), &mut self.source)
            .expect("a piece");
    }

    /// Moves out what the engine has in memory, and marks it.
    fn evict(&mut self, run: Range<usize>, call: Option<(usize, Call)>) {
        let mut moved = Vec::new();
        for page in run {
            if !self.kernel.is_changing() && self.may_evict(page) {
                let AtAddress::Page(number) = self.map.at(Vpn(page as u64)) else { continue };
                let gone = self.kernel.pages[page].as_mut().expect("it is present");
                self.store.insert(number, gone.content);
                gone.entry = Entry::Nothing;
                moved.push(page);
            }
        }
        if let Some((thread, call)) = call {
            self.enter(thread, &call);
        }
        moved.into_iter().for_each(|page| self.mark(one(page)));
    }

    fn may_evict(&self, page: usize) -> bool {
        let AtAddress::Page(number) = self.map.at(Vpn(page as u64)) else { return false };
        let is_there = |page: Page| page.is_registered && page.entry == Entry::Present;
        !self.store.contains_key(&number)
            && !self.map.is_doomed(&one(page))
            && self.kernel.pages[page].is_some_and(is_there)
    }

    /// What a touch of `page` needs.
    fn need(&self, page: usize) -> Need {
        let is_unmarked = self.map.unmarked(&one(page)).next().is_some();
        let entry = match self.entry(page) {
            Entry::Nothing if is_unmarked => Entry::Marked,
            entry => entry,
        };
        let zeros_or = |content: Option<&u32>| content.map_or(Need::Zeros, |&c| Need::Content(c));
        match (self.map.at(Vpn(page as u64)), entry) {
            (AtAddress::Later, _) => Need::Later,
            (_, Entry::Present) => Need::Nothing,
            (AtAddress::Page(number), Entry::Marked) => zeros_or(self.store.get(&number)),
            (_, Entry::Nothing) => Need::Zeros,
            (AtAddress::Unbound, _) if self.map.is_doomed(&one(page)) => Need::Zeros,
            _ if self.map.is_in_doubt() => Need::Later,
            _ => Need::Lost,
        }
    }

    fn fill(&mut self, page: usize) -> Result<(), String> {
        if self.kernel.is_changing() || !self.kernel.is_registered(page..page + 1) {
            return Ok(());
        }
        self.settle();
        self.discard_forgotten();
        self.compare(page)?;
        let content = match self.need(page) {
            Need::Content(content) => content,
            Need::Zeros => 0,
            Need::Nothing | Need::Later | Need::Lost => return Ok(()),
        };
        match self.map.at(Vpn(page as u64)) {
            AtAddress::Page(number) if self.store.remove(&number).is_some_and(|c| c != content) => {
                self.map.drop_gone(&one(page));
                self.bind(page);
            }
            AtAddress::Unbound => self.bind(page),
            _ => {}
        }
        let filled = self.kernel.pages[page].as_mut().expect("it is registered");
        (filled.entry, filled.content) = (Entry::Present, content);
        self.map.seen_new(one(page));
        self.map.marked(one(page));
        Ok(())
    }

    fn write(&mut self, page: usize) {
        self.written += 1;
        let page = self.kernel.pages[page].as_mut().expect("the thread's own");
        (page.entry, page.content) = (Entry::Present, self.written);
    }

    fn look_at_doomed(&mut self) {
        for page in 0..PAGES {
            if self.entry(page) == Entry::Nothing {
                self.map.seen_new(one(page));
            }
        }
    }

    fn hold_threads(&mut self) {
        if !self.map.must_hold_threads() {
            self.grace = None;
        } else if self.grace.is_none() {
            let threads = 0..self.threads;
            self.grace = Some(threads.map(|thread| !self.kernel.is_in_call(thread)).collect());
        }
    }

    /// The engine discards at once.
    fn discard_forgotten(&mut self) {
        for numbers in self.map.take_forgotten() {
            (numbers.start.0..numbers.end.0).for_each(|n| {
                self.store.remove(&PageNo(n));
            });
            self.map.release(numbers, &mut self.source);
        }
    }

    /// What must be true now.
    pub(super) fn check(&self) -> Result<(), String> {
        self.map.check()?;
        if self.kernel.is_changing() {
            return Ok(());
        }
        let mut settled = self.clone();
        settled.settle();
        settled.discard_forgotten();
        settled.map.check()?;
        (0..PAGES).try_for_each(|page| settled.compare(page))
    }

    /// Compares what a touch would bring with what is to be read.
    fn compare(&self, page: usize) -> Result<(), String> {
        let mapped = self.kernel.pages[page].filter(|page| page.is_registered);
        let Some(mapped) = mapped else { return Ok(()) };
        let is_right = match self.need(page) {
            Need::Nothing => true,
            Need::Zeros => mapped.content == 0 || mapped.is_dropping,
            Need::Content(content) => content == mapped.content,
            Need::Later | Need::Lost => false,
        };
        let need = self.need(page);
        let at = self.map.at(Vpn(page as u64));
        is_right
            .then_some(())
            .ok_or_else(|| format!("page {page}: {need:?} ({at:?}) for {mapped:?}"))
    }
}
