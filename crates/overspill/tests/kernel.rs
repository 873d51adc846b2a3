//! Whole engines over real memory, with injected kernel answers that occur once in ten million
//! calls: one episode per seed. The injected kernel does what it is asked for, all of it or a part,
//! and reports something else.
//!
//! `OVERSPILL_SEED=n` replays one, `OVERSPILL_SEEDS=n` plays the first n; `make faults` plays
//! 10 000. An episode has one thread, which touches a page only if it is present, so the same seed
//! plays the same episode. Skips, printing the reason, if userfaultfd is not permitted.

#[path = "../../engine/tests/common/episodes.rs"]
mod episodes;

use episodes::Replay;
use overspill::Bytes;
use overspill_area::{AreaConfig, AreaNo, SwapArea};
use overspill_base::PAGE_SIZE;
use overspill_base::clock::Cpus;
use overspill_base::shared::{PageArena, Table};
use overspill_base::stats::{Event, Stats};
use overspill_base::sync::{Arc, AtomicU64};
use overspill_device::checksum::{Checksummed, TableStore};
use overspill_device::file::{FileDevice, OpenOptions};
use overspill_device::large_pages::LargePages;
use overspill_device::{SwapDevice, SwapKind};
use overspill_engine::frames::Watermarks;
use overspill_engine::{Engine, EngineParts, FaultOutcome, PageTable, Space, Swap, Tuning, Worker};
use overspill_mutate::seeds;
use overspill_space::kernel::{Between, Call, Request};
use overspill_space::uffd::{Delivery, Uffd};
use overspill_space::words::Reach;
use overspill_space::{ManagedMemory, ManagedSpace};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

/// Episodes that `make test` plays.
const SEEDS: u64 = 100;
const OPERATIONS: usize = 250;
const PAGES: usize = 96;
const PLAIN: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::WRITE);

/// Pseudorandom numbers, the same for the same seed.
#[derive(Clone, Debug)]
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// Injected answers, counted by name.
type Happened = BTreeMap<String, u64>;

/// Injects answers.
#[derive(Debug)]
struct Whims {
    state: Mutex<Mood>,
    happened: Arc<Mutex<Happened>>,
    /// Also answers moves with an errno that is not in the table.
    rude: bool,
}

#[derive(Debug)]
struct Mood {
    chance: Chance,
    /// An errno to repeat, and how often.
    sulks: Option<(Errno, u64)>,
}

/// What it does with a call.
#[derive(Clone, Copy, Debug)]
enum Whim {
    Fair,
    /// Does nothing, and returns the errno.
    Nothing(Errno),
    /// Does nothing, for this many calls.
    Sulk(Errno, u64),
    /// Does a part, and reports it.
    Part(u64),
    /// Does `pages`, but reports fewer: EEXIST if none, as Linux 6.18 does.
    More {
        pages: u64,
        says: u64,
    },
}

impl Mood {
    fn whim(&mut self, call: Call, pages: u64, rude: bool) -> Whim {
        if matches!(call, Call::Register | Call::Unregister | Call::Wake) {
            return Whim::Fair;
        }
        if let Some((errno, left)) = self.sulks {
            self.sulks = (left > 1).then_some((errno, left - 1));
            return Whim::Nothing(errno);
        }
        let some = self.chance.below(pages);
        let long = 1 + self.chance.below(150);
        match (self.chance.below(40), call) {
            (0, _) => Whim::Nothing(Errno::AGAIN),
            (1, _) => Whim::Nothing(Errno::INTR),
            (2, _) => Whim::Nothing(Errno::NOMEM),
            (3, _) => {
                Whim::Sulk(if some.is_multiple_of(2) { Errno::NOMEM } else { Errno::AGAIN }, long)
            }
            (4, Call::Move) => Whim::Nothing(Errno::BUSY),
            (5, Call::Move) if rude => Whim::Nothing(Errno::FAULT),
            (6, Call::Move) => Whim::Nothing(Errno::EXIST),
            (7..=12, Call::Move) => {
                Whim::More { pages: some + 1 + self.chance.below(pages - some), says: some }
            }
            (13..=16, Call::Move | Call::Copy | Call::Zero) if some > 0 => Whim::Part(some),
            _ => Whim::Fair,
        }
    }
}

impl Between for Whims {
    fn answer(&self, call: Call, request: &mut dyn Request) -> Result<(), Errno> {
        let all = request.bytes();
        let whim = {
            let mut mood = self.state.lock().unwrap();
            let whim = mood.whim(call, all / PAGE_SIZE as u64, self.rude);
            if let Whim::Sulk(errno, times) = whim {
                mood.sulks = Some((errno, times));
            }
            whim
        };
        if !matches!(whim, Whim::Fair) {
            let kind = format!("{whim:?}");
            let kind = kind.split(['(', ' ']).next().unwrap();
            *self.happened.lock().unwrap().entry(format!("{} {kind}", call.name())).or_default() +=
                1;
        }
        let say = |request: &mut dyn Request, done: i64, errno| {
            request.done().into_iter().for_each(|field| *field = done);
            Err(errno)
        };
        match whim {
            Whim::Fair => request.perform(all),
            Whim::Nothing(errno) | Whim::Sulk(errno, _) => {
                say(request, -i64::from(errno.raw_os_error()), errno)
            }
            Whim::Part(pages) => match request.perform(pages * PAGE_SIZE as u64) {
                Ok(()) => say(request, (pages * PAGE_SIZE as u64) as i64, Errno::AGAIN),
                refused => refused,
            },
            Whim::More { pages, says } => match request.perform(pages * PAGE_SIZE as u64) {
                Ok(()) if says == 0 => {
                    say(request, -i64::from(Errno::EXIST.raw_os_error()), Errno::EXIST)
                }
                Ok(()) => say(request, (says * PAGE_SIZE as u64) as i64, Errno::AGAIN),
                refused => refused,
            },
        }
    }
}

struct Episode {
    chance: Chance,
    engine: Arc<Engine>,
    memory: ManagedMemory,
    worker: Worker,
    page_bytes: usize,
    pagemap: File,
    /// Where the mapping is, and the byte each of its pages is filled with.
    start: usize,
    model: Vec<u8>,
    read_only: Vec<bool>,
    said: Arc<Mutex<Vec<String>>>,
    /// A page was lost on purpose.
    may_lose: bool,
}

fn swap(page_bytes: usize, pages: u64) -> Swap {
    let kind = SwapKind::Ram { size: Bytes((pages + 16) * page_bytes as u64) };
    let ram = FileDevice::open(&kind.into(), &OpenOptions::default()).unwrap();
    let slots = ram.info().slots_max as usize;
    let sums = TableStore::new(Table::on_heap(slots, || AtomicU64::new(0)));
    let sure: Arc<dyn SwapDevice> = Arc::new(Checksummed::new(Arc::new(ram), Arc::new(sums), 7));
    let device = match page_bytes {
        PAGE_SIZE => sure,
        // SAFETY: the engine over it has pages of this size.
        _ => Arc::new(unsafe { LargePages::new(sure, page_bytes / PAGE_SIZE) }.unwrap()),
    };
    let slots = overspill_engine::slot_table(&*device).unwrap();
    let config = AreaConfig { cpus: 1, ..AreaConfig::native() };
    let area = SwapArea::new(AreaNo(0), slots, config);
    Swap { device, area, priority: 0 }
}

impl Episode {
    fn new(seed: u64, happened: &Arc<Mutex<Happened>>) -> Self {
        let mut chance = Chance::new(seed);
        let page_bytes = [4096, 4096, 4096, 16384][chance.below(4) as usize];
        let frames = 16 + chance.below(24) as usize;
        let space = Arc::new(ManagedSpace::reserve(Bytes(1), page_bytes, Reach::All).unwrap());
        let staging = PageArena::new(Engine::staging_pages_of(frames, page_bytes)).unwrap();
        space.register_staging(&staging).unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let sink = said.clone();
        let parts = EngineParts {
            frames,
            table: PageTable::new(Table::private(space.pages()).unwrap()),
            space: Space::Moving(space.clone()),
            page_bytes,
            swaps: vec![swap(page_bytes, 2 * PAGES as u64)],
            arena: staging,
            stats: Stats::on_heap(),
            report: Box::new(move |line| sink.lock().unwrap().push(line.to_owned())),
            tuning: Tuning {
                reclaim_batch_pages: 1 + chance.below(8) as usize,
                lru_batch_pages: 2,
                readahead_max_pages: 8,
                fault_around_pages: 4,
                rotate_batch_pages: 2,
                ..Tuning::default()
            },
            cpus: Cpus { count: 1, current: || 0 },
        };
        let engine = Arc::new(Engine::new(parts));
        let memory = ManagedMemory::new(space.clone(), engine.clone());
        let start = memory.map(PAGES).unwrap();
        let mood = Mood { chance: Chance::new(seed ^ 0xabcdef), sulks: None };
        let (state, happened) = (Mutex::new(mood), happened.clone());
        space.put_between(Box::new(Whims { state, happened, rude: seed % 8 == 7 }));
        Self {
            chance,
            worker: Worker::new(&engine).unwrap(),
            engine,
            memory,
            page_bytes,
            pagemap: File::open("/proc/self/pagemap").unwrap(),
            start,
            model: vec![0; PAGES],
            read_only: vec![false; PAGES],
            said,
            may_lose: false,
        }
    }

    fn address(&self, page: usize) -> usize {
        self.start + page * self.page_bytes
    }

    /// Whether the whole page is present, so that a touch does not fault.
    fn is_there(&self, page: usize) -> bool {
        let parts = self.page_bytes / PAGE_SIZE;
        let mut entries = vec![0u8; parts * 8];
        let offset = (self.address(page) / PAGE_SIZE * 8) as u64;
        self.pagemap.read_exact_at(&mut entries, offset).unwrap();
        let entries = entries.chunks_exact(8).map(|e| u64::from_ne_bytes(e.try_into().unwrap()));
        // In memory or swapped out by the kernel, and not write-protected.
        entries.into_iter().all(|entry| entry >> 62 != 0 && entry & 1 << 57 == 0)
    }

    /// Faults until the page is present, and compares every byte of it.
    fn bring(&mut self, page: usize) {
        while !self.is_there(page) {
            let number = self.memory.space().page_at(self.address(page));
            match self.engine.fault(&mut self.worker, number, 1) {
                FaultOutcome::Mapped | FaultOutcome::Pending => {}
                outcome => panic!("page {page}: {outcome:?}; {:?}", self.said.lock().unwrap()),
            }
            self.worker.poll(&self.engine);
        }
        let lost = self.engine.stats().get(Event::pages_lost);
        assert!(lost == 0 || self.may_lose, "{:?}", self.said.lock().unwrap());
        // SAFETY: mapped by us, present, and changed by this thread alone.
        let content =
            unsafe { std::slice::from_raw_parts(self.address(page) as *const u8, self.page_bytes) };
        let wrong = content.iter().position(|&byte| byte != self.model[page]);
        assert_eq!(wrong, None, "page {page} is not filled with {}", self.model[page]);
    }

    fn write(&mut self, page: usize) {
        self.bring(page);
        if !self.read_only[page] {
            let byte = self.chance.below(256) as u8;
            // SAFETY: as in `bring`; there are no references to it.
            unsafe { (self.address(page) as *mut u8).write_bytes(byte, self.page_bytes) };
            self.model[page] = byte;
        }
    }

    fn some_pages(&mut self) -> Range<usize> {
        let first = self.chance.below(PAGES as u64) as usize;
        first..(first + 1 + self.chance.below(24) as usize).min(PAGES)
    }

    /// A read-only page cannot be moved, and is copied.
    fn protect(&mut self, protection: MprotectFlags) {
        let pages = self.some_pages();
        let (start, len) = (self.address(pages.start), pages.len() * self.page_bytes);
        // SAFETY: pages of ours, to which nobody writes before they are writable again.
        unsafe { rustix::mm::mprotect(start as *mut _, len, protection) }.unwrap();
        self.read_only[pages].fill(protection != PLAIN);
    }

    fn discard(&mut self) {
        let pages = self.some_pages();
        self.worker.finish(&self.engine);
        self.memory.discard(self.address(pages.start), pages.len());
        self.model[pages].fill(0);
    }

    fn balance(&mut self) {
        self.worker.finish(&self.engine);
        let status = self.engine.status();
        // With more than that free, the call would sleep.
        if status.free_frames <= Watermarks::of(status.frames).low {
            self.engine.balance(&mut self.worker, || false);
        }
    }

    fn step(&mut self) {
        match self.chance.below(64) {
            0..=23 => {
                let page = self.chance.below(PAGES as u64) as usize;
                self.write(page);
            }
            24..=39 => {
                let page = self.chance.below(PAGES as u64) as usize;
                self.bring(page);
            }
            40..=51 => self.some_pages().for_each(|page| self.bring(page)),
            52..=55 => self.some_pages().for_each(|page| self.write(page)),
            56 => self.protect(MprotectFlags::READ),
            57 => self.protect(PLAIN),
            58..=60 => self.discard(),
            _ => self.balance(),
        }
    }

    /// Returns the counters.
    fn play(mut self) -> Stats {
        (0..PAGES).for_each(|page| self.write(page));
        (0..OPERATIONS).for_each(|_| self.step());
        (0..PAGES).for_each(|page| self.bring(page));
        self.worker.finish(&self.engine);
        assert_eq!(self.engine.check(), Ok(()));
        let stats = self.engine.stats().clone();
        let said = self.said.lock().unwrap();
        assert_eq!(stats.get(Event::pages_lost), 0, "{said:?}");
        let told = said.iter().any(|line| line.contains("unexpected"));
        assert_eq!(told, stats.get(Event::kernel_unexpected) > 0, "{said:?}");
        stats
    }
}

#[test]
fn whatever_the_kernel_says_no_page_is_lost() {
    if let Err(lack) = Uffd::open(Delivery::Messages, Reach::All) {
        return println!("skipped: {lack}");
    }
    let happened = Arc::new(Mutex::new(Happened::new()));
    let mut counted: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds(SEEDS) {
        let replay = Replay(seed);
        let stats = Episode::new(seed, &happened).play();
        for &(event, name) in Event::ALL {
            *counted.entry(name).or_default() += stats.get(event);
        }
        drop(replay);
    }
    println!("{:?}\n{counted:?}", happened.lock().unwrap());
    // The episodes are worth something only if all of these occur in them.
    let wanted = ["pswpin", "pswpout", "evict_pinned", "evict_refused", "move_misreported"];
    let absent: Vec<_> = wanted.iter().filter(|name| counted[*name] == 0).collect();
    assert!(seeds(SEEDS).count() < 100 || absent.is_empty(), "{absent:?} in none of {counted:?}");
    assert!(seeds(SEEDS).count() < 100 || counted["kernel_unexpected"] > 0, "{counted:?}");
}

/// The program drops a page by a call that we do not see. The pager cannot know that it is
/// unwanted.
#[test]
fn a_page_that_is_nowhere_is_counted_and_said_and_never_zeros() {
    if let Err(lack) = Uffd::open(Delivery::Messages, Reach::All) {
        return println!("skipped: {lack}");
    }
    let mut episode = Episode::new(3, &Arc::default());
    (0..4).for_each(|page| episode.write(page));
    let number = episode.memory.space().page_at(episode.address(1));
    let address = episode.address(1) as *mut _;
    // SAFETY: a page of ours, without references to it.
    unsafe { rustix::mm::madvise(address, episode.page_bytes, rustix::mm::Advice::LinuxDontNeed) }
        .unwrap();
    let outcome = episode.engine.fault(&mut episode.worker, number, 1);
    assert_eq!(outcome, FaultOutcome::Poisoned);
    assert_eq!(episode.engine.stats().get(Event::pages_lost), 1);
    episode.may_lose = true;
    assert!(episode.said.lock().unwrap()[0].contains("is lost"), "{:?}", episode.said);
    episode.worker.finish(&episode.engine);
    assert_eq!(episode.engine.check(), Ok(()));
    // After a deliberate discard it is as good as new.
    episode.memory.discard(episode.address(1), 1);
    episode.model[1] = 0;
    (0..4).for_each(|page| episode.bring(page));
}
