//! A model of the kernel whose mappings have several pages, which may be present.
//!
//! Owns: the pages of an address space, threads inside calls on ranges of them, and the queue of
//! messages. As in `kernel`, a call changes all in one step, and its messages come later.
//! Not here: which calls are made, and when (`histories`).

use crate::Vpn;
use crate::map::Event;
use std::collections::VecDeque;
use std::ops::Range;

pub(super) const PAGES: usize = 12;

/// Nobody: a mapping whose maker is still in its call.
const NOBODY: usize = usize::MAX;

/// What the page table has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    Nothing,
    Present,
    /// Out, with a mark.
    Marked,
}

/// A page that is mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) is_registered: bool,
    is_protected: bool,
    pub(super) entry: Entry,
    /// What a read is to give; 0 for zeros.
    pub(super) content: u32,
    /// Whether that is being dropped: a read may give zeros already.
    pub(super) is_dropping: bool,
    /// The thread that made the mapping, or moved it there, and may use it.
    owner: usize,
}

/// A call of a thread on pages of its own, and free ones.
#[derive(Clone, Debug)]
pub(super) enum Call {
    /// `mmap(MAP_FIXED)`, or of the kernel's choice where nothing is.
    Map(Range<usize>),
    /// A `mmap(MAP_FIXED)` that fails.
    FailToMapOver(Range<usize>),
    Unmap(Range<usize>),
    /// `mremap`, also over other pages of the thread; `len` may be more or less.
    Move {
        from: Range<usize>,
        to: usize,
        len: usize,
    },
    /// `mremap(MREMAP_DONTUNMAP)`.
    MoveAndStay(Range<usize>, usize),
    DontNeed(Range<usize>),
    /// `mprotect`, of which there is no message.
    Protect(Range<usize>),
    /// `mremap` that makes the mapping before these pages longer.
    GrowInto(Range<usize>),
}

impl Call {
    pub(super) fn grows(&self) -> bool {
        match self {
            Self::Move { from, len, .. } => *len > from.len(),
            Self::GrowInto(_) => true,
            _ => false,
        }
    }
}

#[derive(Clone, Debug)]
enum Todo {
    Queue(Event),
    AwaitReading,
    Wake,
    Drop(Range<usize>),
    /// From now on the thread knows of the mapping, and may use it.
    Own(Range<usize>),
}

#[derive(Clone, Debug, Default)]
struct Thread {
    todo: VecDeque<Todo>,
    was_read: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Kernel {
    pub(super) pages: [Option<Page>; PAGES],
    /// Whether a move that shrinks reports the length before (up to Linux 6.15).
    reports_old_lengths: bool,
    queue: VecDeque<(usize, Event)>,
    threads: Vec<Thread>,
}

pub(super) fn place(pages: &Range<usize>) -> Range<Vpn> {
    Vpn(pages.start as u64)..Vpn(pages.end as u64)
}

pub(super) fn indices(place: &Range<Vpn>) -> Range<usize> {
    (place.start.0 as usize).min(PAGES)..(place.end.0 as usize).min(PAGES)
}

fn new(is_registered: bool) -> Page {
    let (entry, owner) = (Entry::Nothing, NOBODY);
    Page { is_registered, is_protected: false, entry, content: 0, is_dropping: false, owner }
}

impl Page {
    fn drop_content(&mut self) {
        (self.entry, self.content, self.is_dropping) = (Entry::Nothing, 0, false);
    }
}

impl Kernel {
    pub(super) fn new(threads: usize, reports_old_lengths: bool) -> Self {
        let threads = vec![Thread::default(); threads];
        Self { pages: [None; PAGES], reports_old_lengths, queue: VecDeque::new(), threads }
    }

    /// Maps registered pages that `owner` may use.
    pub(super) fn give(&mut self, owner: usize, pages: Range<usize>) {
        self.pages[pages].fill(Some(Page { owner, ..new(true) }));
    }

    /// Messages that were promised and not yet acknowledged by their threads: `mmap_changing`.
    pub(super) fn is_changing(&self) -> bool {
        let outstanding = |todo: &Todo| matches!(todo, Todo::Queue(_) | Todo::Wake);
        self.threads.iter().any(|thread| thread.todo.iter().any(outstanding))
    }

    pub(super) fn is_registered(&self, pages: Range<usize>) -> bool {
        !pages.is_empty() && self.pages[pages].iter().all(|p| p.is_some_and(|p| p.is_registered))
    }

    pub(super) fn is_in_call(&self, thread: usize) -> bool {
        !self.threads[thread].todo.is_empty()
    }

    pub(super) fn is_free(&self, pages: Range<usize>) -> bool {
        pages.end <= PAGES && self.pages[pages].iter().all(Option::is_none)
    }

    pub(super) fn owns(&self, thread: usize, pages: Range<usize>) -> bool {
        self.pages[pages].iter().all(|page| page.is_some_and(|page| page.owner == thread))
    }

    /// True if nothing in `pages` is another thread's.
    pub(super) fn may_replace(&self, thread: usize, pages: Range<usize>) -> bool {
        pages.end <= PAGES
            && self.pages[pages].iter().all(|page| page.is_none_or(|page| page.owner == thread))
    }

    /// True if one mapping has all: neighbours join if they are equal.
    pub(super) fn is_one_mapping(&self, pages: Range<usize>) -> bool {
        let kind = |page: &Option<Page>| page.map(|page| (page.is_registered, page.is_protected));
        let first = kind(&self.pages[pages.start]);
        first.is_some() && self.pages[pages].iter().all(|page| kind(page) == first)
    }

    /// Makes the change of a call; its messages are still to come.
    pub(super) fn enter(&mut self, thread: usize, call: &Call) {
        let mut todo = Vec::new();
        match call.clone() {
            Call::Map(pages) => {
                self.unmap(pages.clone(), &mut todo);
                self.pages[pages.clone()].fill(Some(new(false)));
                todo.push(Todo::Own(pages));
            }
            Call::FailToMapOver(pages) => self.tell_unmapped(&pages, &mut todo),
            Call::Unmap(pages) => self.unmap(pages, &mut todo),
            Call::Move { from, to, len } => self.relocate(&from, to, len, &mut todo),
            Call::MoveAndStay(from, to) => {
                self.relocate(&from, to, from.len(), &mut todo);
                // The source is not unmapped: no message of it.
                if todo.len() > 3 {
                    todo.drain(3..6);
                }
                let stays = Page { is_registered: todo.len() > 3, ..new(false) };
                self.pages[from.clone()].fill(Some(stays));
                todo.push(Todo::Own(from));
            }
            Call::DontNeed(pages) => self.drop_content(pages, &mut todo),
            Call::Protect(pages) => {
                let pages = self.pages[pages].iter_mut().flatten();
                pages.for_each(|page| page.is_protected = !page.is_protected);
            }
            Call::GrowInto(pages) => {
                let before = self.pages[pages.start - 1].expect("a mapping that grows");
                let Page { is_registered, is_protected, .. } = before;
                self.pages[pages.clone()].fill(Some(Page { is_protected, ..new(is_registered) }));
                todo.push(Todo::Own(pages));
            }
        }
        self.threads[thread].todo.extend(todo);
    }

    fn relocate(&mut self, from: &Range<usize>, to: usize, len: usize, todo: &mut Vec<Todo>) {
        self.unmap(to..to + len, todo);
        let is_registered = self.is_registered(from.clone());
        let kept = from.start..from.end.min(from.start + len);
        for n in 0..len {
            let moved = self.pages.get(from.start + n).copied().flatten();
            let moved = moved.filter(|_| n < from.len()).unwrap_or(new(is_registered));
            self.pages[to + n] = Some(Page { owner: NOBODY, ..moved });
        }
        self.pages[from.clone()].fill(None);
        if is_registered {
            let told = if self.reports_old_lengths { from.len() } else { kept.len() };
            let (source, target) = (place(from).start, Vpn(to as u64));
            tell(Event::Remapped { from: source, to: target, pages: told as u64 }, todo);
            if kept.end < from.end {
                tell(Event::Unmapped(place(&(kept.end..from.end))), todo);
            }
            tell(Event::Unmapped(place(&kept)), todo);
        }
        todo.push(Todo::Own(to..to + len));
    }

    fn unmap(&mut self, pages: Range<usize>, todo: &mut Vec<Todo>) {
        self.tell_unmapped(&pages, todo);
        self.pages[pages].fill(None);
    }

    fn tell_unmapped(&self, pages: &Range<usize>, todo: &mut Vec<Todo>) {
        if pages.clone().any(|page| self.is_registered(page..page + 1)) {
            tell(Event::Unmapped(place(pages)), todo);
        }
    }

    /// One mapping after the other: told, then dropped. What is not registered is dropped under the
    /// lock under which that was seen.
    fn drop_content(&mut self, pages: Range<usize>, todo: &mut Vec<Todo>) {
        let mut start = pages.start;
        while start < pages.end {
            let mut ends = (start + 1..=pages.end).rev();
            let end = ends.find(|&end| self.is_one_mapping(start..end));
            let mapping = start..end.expect("pages of the thread");
            start = mapping.end;
            if self.is_registered(mapping.clone()) {
                tell(Event::Removed(place(&mapping)), todo);
                let dropping = self.pages[mapping.clone()].iter_mut().flatten();
                dropping.for_each(|page| page.is_dropping = true);
                todo.push(Todo::Drop(mapping));
            } else {
                self.pages[mapping].iter_mut().flatten().for_each(Page::drop_content);
            }
        }
    }

    /// True if a thread can go on in its call.
    pub(super) fn can_go_on(&self, thread: usize) -> bool {
        let thread = &self.threads[thread];
        match thread.todo.front() {
            None => false,
            Some(Todo::AwaitReading) => thread.was_read,
            Some(_) => true,
        }
    }

    /// Lets a thread go on by one step.
    pub(super) fn go_on(&mut self, thread: usize) {
        match self.threads[thread].todo.pop_front().expect("a step to make") {
            Todo::Queue(event) => self.queue.push_back((thread, event)),
            Todo::AwaitReading => self.threads[thread].was_read = false,
            Todo::Wake => {}
            Todo::Drop(pages) => {
                self.pages[pages].iter_mut().flatten().for_each(Page::drop_content);
            }
            Todo::Own(pages) => {
                self.pages[pages].iter_mut().flatten().for_each(|page| page.owner = thread);
            }
        }
    }

    /// Reads one message.
    pub(super) fn read(&mut self) -> Option<Event> {
        let (thread, event) = self.queue.pop_front()?;
        self.threads[thread].was_read = true;
        Some(event)
    }
}

fn tell(event: Event, todo: &mut Vec<Todo>) {
    todo.extend([Todo::Queue(event), Todo::AwaitReading, Todo::Wake]);
}
