//! Swap areas that come and go while an [`Overspill`] runs.
//!
//! Owns: the names by which the user knows areas.
//! Not here: how pages leave one (`engine::swapoff`).

use crate::builder::{Overspill, open_alone, priority};
use crate::error::Error;
use overspill_base::Bytes;
use overspill_device::{SwapKind, SwapSpec};

/// A swap area in use, like a line of `/proc/swaps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapInfo {
    /// The path or another name, for [`Overspill::swapoff`].
    pub name: String,
    /// `file`, `partition`, `ram` or `compressed`.
    pub kind: &'static str,
    /// Its capacity when fully grown.
    pub size: Bytes,
    /// What is used of it, including slots in caches.
    pub used: Bytes,
    /// Higher is used first.
    pub priority: i16,
}

/// The kind of a place as in `/proc/swaps`, which has no names for memory.
pub(crate) fn kind_name(kind: &SwapKind) -> &'static str {
    match kind {
        SwapKind::Default | SwapKind::File { .. } => "file",
        SwapKind::Block { .. } => "partition",
        SwapKind::Ram { .. } => "ram",
        SwapKind::Compressed { .. } => "compressed",
        SwapKind::Nbd { .. } | SwapKind::RedisCluster { .. } => "network",
    }
}

impl Overspill {
    /// Adds a swap area. Without a priority it is used after all areas added before. An `Overspill`
    /// can have 32 areas in its life, including those that were swapped off.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Swapon`], and nothing was changed.
    pub fn swapon(&self, spec: &SwapSpec) -> Result<(), Error> {
        self.pager.check_maker()?;
        let mut kinds = self.kinds.lock();
        let device = open_alone(spec, &self.options)?;
        let swap = self.pager.swap_of(device, priority(spec, kinds.len()))?;
        self.pager.swapon(swap)?;
        kinds.push(kind_name(&spec.kind));
        Ok(())
    }

    /// Moves all pages of an area back to memory or to other areas, and closes it. If several have
    /// the same name, the one added last is meant. Blocks for the I/O; regions can be used
    /// meanwhile. A page that cannot be read is lost, as if it had been touched.
    ///
    /// # Errors
    /// [`Error::NoSuchSwap`]; [`Error::Swapoff`] if there is no room for the pages; the area is
    /// then in use as before.
    pub fn swapoff(&self, name: &str) -> Result<(), Error> {
        self.pager.check_maker()?;
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
