//! Finds the pages of a device that cannot be read.
//!
//! Owns: reading all of it once, and failed requests a second time page by page: one bad page fails
//! a whole request.
//! Not here: what is done about bad pages ([`super::mkswap`]).

use crate::error::DeviceError;
use crate::{IoOp, IoQueue, IoRequest, MAX_REQUEST_PAGES, SwapDevice};
use overspill_base::Slot;
use overspill_base::shared::{PageArena, PageBuf};

/// Returns the slots of `device` that cannot be read, in order. Stops at the first after `most`:
/// the pages of a disk that is gone are not all tried.
///
/// # Errors
/// As [`SwapDevice::open_queue`]; [`DeviceError::Queue`] with ENOMEM.
pub(super) fn unreadable(device: &dyn SwapDevice, most: usize) -> Result<Vec<Slot>, DeviceError> {
    let name = || device.info().name.clone();
    let arena = PageArena::new(MAX_REQUEST_PAGES)
        .map_err(|errno| DeviceError::Queue { name: name(), errno })?;
    // SAFETY: one handle to each page, and the arena outlives the reader that has them.
    let pages = (0..arena.pages()).map(|place| unsafe { arena.page(place) }).collect();
    let mut reader = Reader { queue: device.open_queue(1)?, pages };
    let slots = device.info().slots_max;
    let mut bad = Vec::new();
    for first in (0..slots).step_by(MAX_REQUEST_PAGES) {
        let count = (slots - first).min(MAX_REQUEST_PAGES as u32);
        if !reader.can_read(first, count) {
            bad.extend((first..first + count).filter(|&slot| !reader.can_read(slot, 1)).map(Slot));
        }
        if bad.len() > most {
            bad.truncate(most + 1);
            break;
        }
    }
    Ok(bad)
}

struct Reader {
    queue: Box<dyn IoQueue>,
    pages: Vec<PageBuf>,
}

impl Reader {
    fn can_read(&mut self, first: u32, count: u32) -> bool {
        let rest = self.pages.split_off(count as usize);
        let pages = std::mem::take(&mut self.pages);
        self.queue.submit(IoRequest { op: IoOp::Read, slot: Slot(first), pages, tag: 0 });
        self.queue.flush();
        let mut done = Vec::new();
        while done.is_empty() {
            self.queue.wait();
            self.queue.reap(&mut done);
        }
        let completion = done.pop().expect("the loop ends with one");
        self.pages = completion.request.pages;
        self.pages.extend(rest);
        completion.failures.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faulty::{FaultPlan, Faults, Faulty};
    use crate::testing::ram;
    use std::sync::Arc;

    fn faulty(inner: Arc<dyn SwapDevice>, faults: Faults) -> Arc<dyn SwapDevice> {
        Arc::new(Faulty::new(inner, Arc::new(FaultPlan::new(faults))))
    }

    #[test]
    fn every_unreadable_page_is_found_and_no_other() {
        let none: [u32; 0] = [];
        let sets: [&[u32]; 4] = [&none, &[0], &[255, 256, 300], &[599]];
        for bad in sets {
            // 600 slots are two full requests and a part.
            let device = bad.iter().fold(ram(600), |device, &slot| {
                faulty(device, Faults { unreadable: Some(Slot(slot)), ..Faults::default() })
            });
            let found = unreadable(&*device, 637).unwrap();
            assert!(found.iter().map(|slot| slot.0).eq(bad.iter().copied()), "{found:?}");
        }
    }

    #[test]
    fn a_passing_failure_is_not_a_bad_page() {
        let device = faulty(ram(600), Faults { fail_read: Some(1), ..Faults::default() });
        assert_eq!(unreadable(&*device, 637), Ok(Vec::new()));
    }

    #[test]
    fn a_disk_that_is_gone_is_not_searched_to_its_end() {
        // The queue is opened before the device goes.
        let device = faulty(ram(5000), Faults { vanish_from: Some(1), ..Faults::default() });
        let found = unreadable(&*device, 300).unwrap();
        assert_eq!((found.len(), found[0]), (301, Slot(256)));
    }
}
