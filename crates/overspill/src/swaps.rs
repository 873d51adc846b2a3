//! Swap areas that come and go while an [`Overspill`] runs.
//!
//! Owns: the names by which the user knows areas. Not here: how pages leave one
//! (`engine::swapoff`).

use crate::builder::{Overspill, priority};
use crate::error::Error;
use overspill_base::Bytes;
use overspill_device::{Device, SwapKind, SwapSpec};

/// A swap area in use, as a line of `/proc/swaps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapInfo {
    /// The path, or what else tells it apart for [`Overspill::swapoff`].
    pub name: String,
    /// `file`, `partition`, `ram` or `compressed`.
    pub kind: &'static str,
    /// What it can hold, once it has grown to the full.
    pub size: Bytes,
    /// What it holds, slots kept ready included.
    pub used: Bytes,
    /// Higher is used first.
    pub priority: i16,
}

/// What `/proc/swaps` calls a place, and names for memory, which it does not know.
pub(crate) fn kind_name(kind: &SwapKind) -> &'static str {
    match kind {
        SwapKind::Default | SwapKind::File { .. } => "file",
        SwapKind::Block { .. } => "partition",
        SwapKind::Ram { .. } => "ram",
        SwapKind::Compressed { .. } => "compressed",
    }
}

impl Overspill {
    /// Adds a swap area. Without a priority it is used after all that are there already. In its
    /// life an `Overspill` can have 32 areas, those that were swapped off included.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Swapon`]; then nothing was changed.
    pub fn swapon(&self, spec: &SwapSpec) -> Result<(), Error> {
        let mut kinds = self.kinds.lock();
        let device = Device::open(spec, &self.options)?.shared();
        let swap = self.pager.swap_of(device, priority(spec, kinds.len()))?;
        self.pager.swapon(swap)?;
        kinds.push(kind_name(&spec.kind));
        Ok(())
    }

    /// Brings all pages on an area back to memory or to other areas, and closes it. Of several with
    /// the same name it is the one that was added last. Blocks for the I/O; regions can be used
    /// meanwhile. A page that cannot be read is lost, as if it had been touched.
    ///
    /// # Errors
    /// [`Error::NoSuchSwap`]; [`Error::Swapoff`] when there is no room for the pages. The area is
    /// in use as before then.
    pub fn swapoff(&self, name: &str) -> Result<(), Error> {
        let swaps = self.pager.engine().swaps();
        let named = swaps.iter().rev().find(|swap| swap.name == name);
        let Some(swap) = named else {
            let names: Vec<&str> = swaps.iter().map(|swap| swap.name.as_str()).collect();
            return Err(Error::NoSuchSwap(name.to_owned(), names.join(", ")));
        };
        self.pager.swapoff(swap.area)
    }

    /// The areas in use, in the order in which they were added.
    pub fn swaps(&self) -> Vec<SwapInfo> {
        let kinds = self.kinds.lock();
        let swaps = self.pager.engine().swaps().into_iter();
        let size_of = |pages: u32| self.pager.memory().space().size_of(pages as usize);
        let infos = swaps.map(|swap| SwapInfo {
            name: swap.name,
            kind: kinds[swap.area.0 as usize],
            size: size_of(swap.pages),
            used: size_of(swap.used),
            priority: swap.priority,
        });
        infos.collect()
    }
}
