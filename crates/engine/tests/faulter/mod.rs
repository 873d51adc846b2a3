//! In-place workers, which wait for the reclaim thread.

use super::TUNING;
use super::common::{Rig, Touch};
use overspill_base::PageNo;
use overspill_device::faulty::Faults;
use overspill_engine::Worker;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Runs `f` beside a reclaim thread that starts `late`.
fn beside_reclaim<R>(rig: &Rig, late: Duration, f: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(late);
            let mut worker = Worker::new(&rig.engine).unwrap();
            while !stop.load(Relaxed) {
                rig.engine.balance(&mut worker, || stop.load(Relaxed));
            }
        });
        let result = f();
        stop.store(true, Relaxed);
        rig.engine.wake_background();
        result
    })
}

/// Memory has not run out while the reclaim thread has not run, on a busy machine.
#[test]
fn a_faulter_hopes_until_reclaim_has_tried() {
    let rig = Rig::new(16, 64, &[256], TUNING);
    let mut worker = Worker::for_faulter(&rig.engine).unwrap();
    let mut write =
        |page: u32, value| rig.touch(&mut worker, PageNo(page), |content| content[0] = value);
    let all_fit = beside_reclaim(&rig, Duration::from_secs(1), || {
        (0..64).all(|page| write(page, 1) == Touch::Done)
    });
    assert!(all_fit);
    rig.plans[0].set(Faults { fail_writes_from: Some(0), ..Faults::default() });
    let ended = beside_reclaim(&rig, Duration::ZERO, || {
        (0..64).any(|page| write(page, 2) == Touch::OutOfMemory)
    });
    assert!(ended);
}
