//! Mirrors over memory that fails as planned.

use super::*;
use overspill_base::PAGE_SIZE;
use overspill_base::shared::{PageArena, PageBuf};
use overspill_device::PageFailure;
use overspill_device::faulty::{FaultPlan, Faults, Faulty};
use overspill_device::file::OpenOptions;

const SLOTS: u32 = 64;

struct Rig {
    plans: [Arc<FaultPlan>; 2],
    queue: Box<dyn IoQueue>,
    pages: PageArena,
}

impl Rig {
    fn new() -> Self {
        let plans = [(); 2].map(|()| Arc::new(FaultPlan::new(Faults::default())));
        let side = |plan: &Arc<FaultPlan>| {
            let spec: SwapSpec = format!("ram:{}K", SLOTS * 4).parse().unwrap();
            let ram = Device::open(&spec, &OpenOptions::default()).unwrap().bare();
            Arc::new(Faulty::new(ram, plan.clone())) as Arc<dyn SwapDevice>
        };
        let sides = [side(&plans[0]), side(&plans[1])];
        let info = sides[0].info().clone();
        let queue = Mirror::new(sides, info, |_| {}).open_queue(8).unwrap();
        Self { plans, queue, pages: PageArena::new(SLOTS as usize).unwrap() }
    }

    fn fail(&self, side: Side, faults: Faults) {
        self.plans[side as usize].set(faults);
    }

    fn submit(&mut self, op: IoOp, slot: u32, content: u8) {
        // SAFETY: a slot has one request at a time, and its page is only used for that. If not, two
        // requests would have one page.
        let mut page = unsafe { self.pages.page(slot as usize) };
        page.fill(content);
        let tag = u64::from(slot);
        self.queue.submit(IoRequest { op, slot: Slot(slot), pages: vec![page], tag });
    }

    /// Ends all requests; what became of each slot's page.
    fn finish(&mut self) -> HashMap<u64, (PageBuf, Vec<PageFailure>)> {
        self.queue.flush();
        let mut done = Vec::new();
        while self.queue.in_flight() > 0 {
            self.queue.wait();
            self.queue.reap(&mut done);
        }
        let ends = done.into_iter().map(|Completion { mut request, failures }| {
            (request.tag, (request.pages.pop().unwrap(), failures))
        });
        ends.collect()
    }

    /// True if it was written.
    fn write(&mut self, slot: u32, content: u8) -> bool {
        self.submit(IoOp::Write, slot, content);
        self.finish()[&u64::from(slot)].1.is_empty()
    }

    /// What is read; none if nothing can be.
    fn read(&mut self, slot: u32) -> Option<u8> {
        self.submit(IoOp::Read, slot, 0xee);
        let (page, failures) = self.finish().remove(&u64::from(slot)).unwrap();
        assert!(page.iter().all(|&byte| byte == page[0]) && page.len() == PAGE_SIZE);
        failures.is_empty().then(|| page[0])
    }
}

fn sound() -> Faults {
    Faults::default()
}

fn unreadable() -> Faults {
    Faults { read_failures_per_mille: 1000, ..sound() }
}

fn unwritable() -> Faults {
    Faults { write_failures_per_mille: 1000, ..sound() }
}

#[test]
fn either_side_has_every_page() {
    for side in Side::BOTH {
        let mut rig = Rig::new();
        assert!(rig.write(1, 7));
        rig.fail(side, unreadable());
        assert_eq!(rig.read(1), Some(7), "{side:?}");
        assert_eq!(rig.read(1), Some(7), "{side:?}");
    }
}

#[test]
fn a_side_that_could_not_be_written_is_never_read_again() {
    for side in Side::BOTH {
        let mut rig = Rig::new();
        assert!(rig.write(1, 7));
        rig.fail(side, unwritable());
        assert!(rig.write(1, 8), "{side:?}");
        rig.fail(side, sound());
        assert_eq!(rig.read(1), Some(8), "{side:?}");
        // Rather nothing than what the other has.
        rig.fail(side.other(), unreadable());
        assert_eq!(rig.read(1), None, "{side:?}");
    }
}

#[test]
fn the_last_side_is_never_left() {
    let mut rig = Rig::new();
    rig.fail(Side::First, unwritable());
    rig.fail(Side::Second, unwritable());
    assert!(!rig.write(1, 7));
    rig.fail(Side::First, sound());
    rig.fail(Side::Second, sound());
    assert!(rig.write(1, 8));
    assert_eq!(rig.read(1), Some(8));
}

/// The first write is on its way to the second side when the first side is left.
#[test]
fn what_only_a_side_has_that_was_left_meanwhile_is_not_written() {
    let mut rig = Rig::new();
    rig.fail(Side::First, Faults { fail_write: Some(1), ..sound() });
    rig.fail(Side::Second, Faults { fail_write: Some(0), ..sound() });
    rig.submit(IoOp::Write, 1, 7);
    rig.submit(IoOp::Write, 2, 7);
    let ends = rig.finish();
    let failed = |slot| !ends[&slot].1.is_empty();
    assert!(failed(1), "only the side that was left has it");
    assert!(!failed(2));
}

/// Whatever fails on either side, what is read is what was written last, or nothing.
#[test]
fn no_old_page_is_read() {
    for seed in 0..300 {
        let mut rig = Rig::new();
        let mut random: u64 = seed * 2_654_435_761 + 1;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let mut known: HashMap<u32, Option<u8>> = HashMap::new();
        for round in 0..60 {
            if round == 20 {
                let faults = Faults {
                    seed,
                    write_failures_per_mille: 30,
                    read_failures_per_mille: 30,
                    ..sound()
                };
                rig.fail(Side::BOTH[next(2) as usize], faults);
            }
            let (slot, content) = (1 + next(8) as u32, next(200) as u8);
            if next(2) == 0 {
                let is_written = rig.write(slot, content);
                known.insert(slot, is_written.then_some(content));
            } else if let (Some(Some(content)), Some(read)) = (known.get(&slot), rig.read(slot)) {
                assert_eq!(read, *content, "seed {seed}, round {round}, slot {slot}");
            }
        }
    }
}

/// Takes so many requests, and completes one at each look.
struct Slow {
    room: usize,
    held: Vec<IoRequest>,
    always: OwnedFd,
}

impl IoQueue for Slow {
    fn submit(&mut self, request: IoRequest) {
        assert!(self.held.len() < self.room, "the other side is not listened to meanwhile");
        self.held.push(request);
    }

    fn flush(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let oldest = (!self.held.is_empty()).then(|| self.held.remove(0));
        done.extend(oldest.map(|request| Completion { request, failures: Vec::new() }));
    }

    fn wait(&mut self) {}

    fn in_flight(&self) -> usize {
        self.held.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.always.as_fd())
    }
}

#[test]
fn no_side_is_ever_full() {
    const ROOM: u32 = 4;
    let mut rig = Rig::new();
    let spec: SwapSpec = format!("ram:{}K", SLOTS * 4).parse().unwrap();
    let ram = Device::open(&spec, &OpenOptions::default()).unwrap().bare();
    let always = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let slow = Slow { room: ROOM as usize, held: Vec::new(), always };
    let news = News::new("a mirror", |_| {});
    let standing = Standing { left: None, preferred: Side::First, news };
    let standing = Arc::new(Mutex::new(LockClass::ServedDevice, standing));
    let queues: [Box<dyn IoQueue>; 2] = [ram.open_queue(ROOM).unwrap(), Box::new(slow)];
    rig.queue = Box::new(MirrorQueue::new(queues, ROOM, standing).unwrap());
    (1..SLOTS).for_each(|slot| rig.submit(IoOp::Write, slot, 7));
    assert_eq!(rig.finish().len(), SLOTS as usize - 1);
}
