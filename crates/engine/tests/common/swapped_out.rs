//! An engine some of whose pages are out.

use super::{Rig, Touch};
use overspill_base::PageNo;
use overspill_engine::{Tuning, Worker};

/// Makes an engine with 64 pages swapped out, in order of their slots, and many free frames.
pub(crate) fn swapped_out(tuning: Tuning) -> (Rig, Worker) {
    let rig = Rig::on_one_cpu(256, 64 + 256, &[1024], tuning);
    let mut worker = Worker::new(&rig.engine).unwrap();
    for page in 0..64 + 256 {
        rig.touch(&mut worker, PageNo(page), |content| content.fill(page as u8 | 1));
    }
    worker.finish(&rig.engine);
    rig.engine.discard(PageNo(64), 256);
    assert!((0..64).all(|page| !rig.engine.is_resident(PageNo(page))));
    (rig, worker)
}

/// Writes what belongs on a page.
pub(crate) fn write(rig: &Rig, worker: &mut Worker, page: u32) {
    rig.touch(worker, PageNo(page), |content| content.fill(page as u8 | 1));
}

/// Reads a page, which has what belongs there.
pub(crate) fn read(rig: &Rig, worker: &mut Worker, page: u32) {
    let touched = rig.touch(worker, PageNo(page), |content| assert_eq!(content[0], page as u8 | 1));
    assert_eq!(touched, Touch::Done);
}
