//! The equations of [`crate::types`], as a check.

use crate::lists::ListKind;
use crate::types::SwapArea;
use overspill_base::Slot;
use overspill_base::sync::Ordering::Relaxed;

impl SwapArea {
    /// Verifies every counter of the clusters this process owns. Call at quiescence.
    ///
    /// # Errors
    /// The first equation that does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        for cluster in 0..self.owners.len() as u32 {
            if self.owners[cluster as usize].load(Relaxed) == self.member().owner_word() {
                self.check_cluster(cluster)?;
            }
        }
        self.check_lists()
    }

    fn check_cluster(&self, cluster: u32) -> Result<(), String> {
        let state = self.cluster(cluster).lock();
        let first = cluster * self.config.tuning.cluster_slots;
        let used = (first..first + self.config.tuning.cluster_slots)
            .filter(|&slot| self.slots.in_use(Slot(slot)))
            .count() as u32;
        let unseen = self.returned[cluster as usize].load(Relaxed);
        if state.used != used && unseen == 0 {
            return Err(format!("cluster {cluster}: counts {} used, has {used}", state.used));
        }
        let fits = match state.list {
            ListKind::Current => true,
            ListKind::Free => state.used == 0,
            ListKind::Nonfull => state.used > 0 && state.used < self.config.tuning.cluster_slots,
            ListKind::None => state.used == self.config.tuning.cluster_slots,
        };
        fits.then_some(()).ok_or(format!("cluster {cluster}: {state:?} is on the wrong list"))
    }

    fn check_lists(&self) -> Result<(), String> {
        for kind in [ListKind::Free, ListKind::Nonfull] {
            let members: Vec<u32> = self.lists.lock().iter(kind).collect();
            if members.len() != self.lists.lock().len(kind) {
                return Err(format!("{kind:?} list: wrong length"));
            }
            for cluster in members {
                let says = self.cluster(cluster).lock().list;
                if says != kind {
                    return Err(format!("cluster {cluster}: on {kind:?}, says {says:?}"));
                }
            }
        }
        Ok(())
    }
}
