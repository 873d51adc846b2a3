//! Asynchronous readahead, by its thread.

use super::common::Rig;
use super::{READAHEAD, added, read, write};
use overspill_base::PageNo;
use overspill_engine::{Tuning, Worker};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The windows of a long stream are read before it reaches them, and mapped when it does.
#[test]
fn a_long_stream_finds_its_windows_read() {
    const READ: u32 = 4096;
    const STARTED: u32 = 512;
    // Enough for all that is read: if reclaim fell behind, windows would be cut short and left to
    // their faults.
    const FRAMES: usize = 8192;
    let pages = FRAMES as u32 + READ + 512;
    let rig = Rig::on_one_cpu(FRAMES, pages as usize, &[2 * pages], Tuning::default());
    let mut worker = Worker::new(&rig.engine).unwrap();
    (0..pages).for_each(|page| write(&rig, &mut worker, page));
    worker.finish(&rig.engine);
    rig.engine.discard(PageNo(READ + 512), FRAMES);
    let before = added(&rig, READAHEAD, [0; 5]);
    let done = AtomicBool::new(false);
    let waited = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut worker = Worker::new(&rig.engine).unwrap();
            while !done.load(SeqCst) {
                rig.engine.read_ahead(&mut worker, || done.load(SeqCst));
            }
            worker.finish(&rig.engine);
        });
        let all = (0..READ).all(|page| {
            read(&rig, &mut worker, page);
            let read_yet = || added(&rig, READAHEAD, before)[..2].iter().sum::<u64>();
            page < STARTED || comes_true(|| read_yet() >= u64::from(page) + 64)
        });
        done.store(true, SeqCst);
        rig.engine.wake_background();
        all
    });
    assert!(waited, "{:?}", added(&rig, READAHEAD, before));
    let [faults, _, _, wasted, came_to] = added(&rig, READAHEAD, before);
    assert!(faults < 512 && wasted == 0, "{faults} faults, {wasted} wasted");
    assert!(came_to >= u64::from(READ - STARTED) / 64 * 3 / 4, "{came_to} windows were waiting");
    assert_eq!(rig.engine.check(), Ok(()));
}

fn comes_true(condition: impl Fn() -> bool) -> bool {
    let patience = Instant::now() + Duration::from_secs(5);
    std::iter::repeat_with(&condition)
        .take_while(|_| Instant::now() < patience)
        .inspect(|_| std::thread::yield_now())
        .any(|is_true| is_true)
}
