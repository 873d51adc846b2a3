//! Cluster lists: allocation of slots without a search.
//!
//! Owns: clusters with their locks, the lists they are on, and each CPU's current clusters.
//! Invariants: a CPU allocates from its current cluster of the wanted order, under one acquisition
//! of that cluster's lock per batch; a CPU's current cluster is on no list. The first allocation in
//! an empty cluster decides the order it is kept for. A cluster that was searched in vain waits on
//! a frag list until one of its slots is freed. A cluster is listed when the others are not enough:
//! an area may be far larger than what it ever holds.
//! Not here: several areas ([`crate::SwapAreas`]).
//! Source: Linux 6.12 and on.
//! Rejected: free clusters before nonfull ones on every device. It keeps batches in one run, but
//! the measured ratio was within the noise (random, read and modify on a file, four interleaved
//! rounds).

use crate::lists::{ClusterLists, FreshOrder, ListKind, ORDERS};
use crate::state::AreaState;
use crate::types::AreaConfig;
use overspill_base::Slot;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{AtomicU32, LockClass, Mutex, MutexGuard};
use overspill_base::work::{self, Work};
use std::sync::OnceLock;

/// Clusters whose state is allocated together.
const GROUP: usize = 64;

/// Cluster lists of one area.
#[derive(Debug)]
pub(crate) struct ListAllocator {
    /// Groups are allocated when first needed.
    groups: Vec<OnceLock<Box<[Mutex<Cluster>]>>>,
    pub(crate) lists: Mutex<ClusterLists>,
    cpus: Vec<Mutex<Current>>,
    /// Clusters that were ever listed.
    listed: AtomicU32,
    /// Where the search for one that was not starts, in [`FreshOrder`].
    next_fresh: AtomicU32,
}

/// A cluster; fresh until it is listed for the first time.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// Number of slots in use.
    pub(crate) used: u32,
    /// Which list it is on; the links are in [`ClusterLists`].
    pub(crate) list: ListKind,
    /// It is kept for folios of `1 << order` pages.
    pub(crate) order: u8,
}

pub(crate) type ClusterGuard<'a> = MutexGuard<'a, Cluster>;

/// Per order: a CPU's current cluster, and the next offset to try in it.
type Current = [Option<(u32, u32)>; ORDERS];

/// How far an allocation goes to find a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// Where room for the order is likely.
    Likely,
    /// Everywhere.
    Anywhere,
}

impl ListAllocator {
    /// Makes an allocator of `clusters` clusters, none of them listed.
    pub(crate) fn new(config: AreaConfig, clusters: usize) -> Self {
        // All CPUs share one allocation point on a rotational device.
        let cpus = if config.rotational { 1 } else { config.cpus };
        let current = || Mutex::new(LockClass::CpuCluster, [None; ORDERS]);
        Self {
            groups: (0..clusters.div_ceil(GROUP)).map(|_| OnceLock::new()).collect(),
            lists: Mutex::new(LockClass::ClusterLists, ClusterLists::default()),
            cpus: std::iter::repeat_with(current).take(cpus).collect(),
            listed: AtomicU32::new(0),
            next_fresh: AtomicU32::new(0),
        }
    }

    pub(crate) fn cluster(&self, cluster: u32) -> &Mutex<Cluster> {
        let (group, within) = (cluster as usize / GROUP, cluster as usize % GROUP);
        let fresh = || Mutex::new(LockClass::Cluster, Cluster::default());
        &self.groups[group].get_or_init(|| (0..GROUP).map(|_| fresh()).collect())[within]
    }

    /// Iterates over the clusters that may have been listed.
    pub(crate) fn known_clusters(&self) -> impl Iterator<Item = &Mutex<Cluster>> {
        self.groups.iter().filter_map(OnceLock::get).flatten()
    }

    fn cpu(&self, cpu: usize) -> MutexGuard<'_, Current> {
        self.cpus[cpu % self.cpus.len()].lock()
    }

    /// Appends up to `want` slots to `out`, in ascending runs where possible.
    pub(crate) fn alloc(
        &self,
        area: &AreaState,
        cpu: usize,
        want: usize,
        effort: Effort,
        out: &mut Vec<Slot>,
    ) -> usize {
        let mut current = self.cpu(cpu);
        let start = out.len();
        area.add_used(want);
        while out.len() - start < want && area.is_writable() {
            let fresh = || self.next_cluster(area, 0, effort);
            let Some((cluster, next)) = current[0].take().or_else(fresh) else { break };
            let left = want - (out.len() - start);
            let end = self.take_slots(area, cluster, next, left, out);
            self.keep_or_retire(area, &mut current[0], cluster, end);
        }
        let got = out.len() - start;
        area.sub_used(want - got);
        got
    }

    /// Allocates `1 << order` adjacent slots in one cluster, naturally aligned; returns the first.
    pub(crate) fn alloc_folio(&self, area: &AreaState, cpu: usize, order: u8) -> Option<Slot> {
        let mut current = self.cpu(cpu);
        let place = &mut current[usize::from(order)];
        area.add_used(1 << order);
        while area.is_writable() {
            let fresh = || self.next_cluster(area, order, Effort::Likely);
            let Some((cluster, next)) = place.take().or_else(fresh) else { break };
            let (found, end) = self.take_run(area, cluster, next, order);
            self.keep_or_retire(area, place, cluster, end);
            if found.is_some() {
                return found;
            }
        }
        area.sub_used(1 << order);
        None
    }

    fn keep_or_retire(
        &self,
        area: &AreaState,
        place: &mut Option<(u32, u32)>,
        cluster: u32,
        end: u32,
    ) {
        if end < area.tuning().cluster_slots && area.is_writable() {
            *place = Some((cluster, end));
        } else {
            self.retire(area, cluster);
        }
    }

    /// Claims up to `want` free slots of `cluster`, from offset `next` on; returns where it
    /// stopped.
    fn take_slots(
        &self,
        area: &AreaState,
        cluster: u32,
        next: u32,
        want: usize,
        out: &mut Vec<Slot>,
    ) -> u32 {
        let mut state = self.cluster(cluster).lock();
        let start = out.len();
        let mut offset = next;
        while offset < area.tuning().cluster_slots && out.len() - start < want && area.is_writable()
        {
            let slot = Slot(cluster * area.tuning().cluster_slots + offset);
            work::charge(Work::SlotsScanned(1));
            if area.slots.claim(slot) {
                out.push(slot);
            }
            offset += 1;
        }
        state.used += (out.len() - start) as u32;
        offset
    }

    /// Claims one aligned run of `1 << order` slots; returns it and where the search stopped.
    fn take_run(
        &self,
        area: &AreaState,
        cluster: u32,
        next: u32,
        order: u8,
    ) -> (Option<Slot>, u32) {
        let mut state = self.cluster(cluster).lock();
        let (size, run) = (area.tuning().cluster_slots, 1 << order);
        let mut offset = next.next_multiple_of(run);
        while offset < size && area.is_writable() {
            let first = Slot(cluster * size + offset);
            offset += run;
            let slots = || (0..run as usize).map(|n| first.plus(n));
            if slots().all(|slot| !area.slots.in_use(slot)) {
                let claimed = slots().all(|slot| area.slots.claim(slot));
                debug_assert!(claimed, "slots are claimed under their cluster's lock");
                state.used += run;
                return (Some(first), offset);
            }
        }
        (None, offset)
    }

    /// Takes a cluster with room for a folio of `order` off its list, to be searched from its
    /// start: listed clusters first, then fresh ones.
    fn next_cluster(&self, area: &AreaState, order: u8, effort: Effort) -> Option<(u32, u32)> {
        loop {
            let found = self.pick_likely(area, order).or_else(|| match effort {
                Effort::Likely => None,
                Effort::Anywhere => self.pick_anywhere(order),
            });
            if let Some(cluster) = found {
                return Some((cluster, 0));
            }
            let more = self.any_listed(order) || self.list_fresh(area);
            if !more || !area.is_writable() {
                return None;
            }
        }
    }

    /// Picks partly used clusters before free ones, except on a device that discards, to spread
    /// writes.
    fn pick_likely(&self, area: &AreaState, order: u8) -> Option<u32> {
        let mut kinds = [ListKind::Nonfull(order), ListKind::Free];
        if area.config.discard {
            kinds.reverse();
        }
        kinds.into_iter().find_map(|kind| self.pick(kind, order))
    }

    /// Picks a cluster that was fragmented when last searched; for single pages also one kept for
    /// larger folios.
    fn pick_anywhere(&self, order: u8) -> Option<u32> {
        let frag = self.pick(ListKind::Frag(order), order);
        let larger = if order == 0 { 1..ORDERS as u8 } else { 0..0 };
        frag.or_else(|| {
            let mut kinds = larger.flat_map(|o| [ListKind::Frag(o), ListKind::Nonfull(o)]);
            kinds.find_map(|kind| self.pick(kind, order))
        })
    }

    /// True if a cluster was listed since `pick_likely` looked.
    fn any_listed(&self, order: u8) -> bool {
        let lists = self.lists.lock();
        lists.len(ListKind::Free) + lists.len(ListKind::Nonfull(order)) > 0
    }

    fn pick(&self, kind: ListKind, order: u8) -> Option<u32> {
        loop {
            let first = self.lists.lock().first(kind)?;
            let mut state = self.cluster(first).lock();
            if state.list == kind {
                self.relink(first, &mut state, ListKind::Current);
                if state.used == 0 {
                    state.order = order;
                }
                return Some(first);
            }
        }
    }

    /// Puts a CPU's current cluster on the list its count asks for. Slots still free in it were
    /// freed behind the CPU's position, or have no room for a folio.
    fn retire(&self, area: &AreaState, cluster: u32) {
        let mut state = self.cluster(cluster).lock();
        state.list = ListKind::None;
        let order = state.order;
        let partly = if order == 0 { ListKind::Nonfull(0) } else { ListKind::Frag(order) };
        self.relist_as(area, cluster, &mut state, partly);
    }

    /// Retires the current clusters of all CPUs.
    pub(crate) fn retire_all(&self, area: &AreaState) {
        for cpu in &self.cpus {
            let mut current = cpu.lock();
            for place in current.iter_mut() {
                if let Some((cluster, _)) = place.take() {
                    self.retire(area, cluster);
                }
            }
        }
    }

    /// Drops a hold of each of `slots`, with one acquisition of a cluster's lock for each run of
    /// slots in it.
    pub(crate) fn free(&self, area: &AreaState, slots: &[Slot]) {
        let runs = slots.chunk_by(|&a, &b| area.cluster_of(a) == area.cluster_of(b));
        area.sub_used(runs.map(|run| self.free_in(area, area.cluster_of(run[0]), run)).sum());
    }

    fn free_in(&self, area: &AreaState, cluster: u32, slots: &[Slot]) -> usize {
        let mut state = self.cluster(cluster).lock();
        let freed = slots.iter().filter(|&&slot| area.drop_hold(slot)).count();
        state.used -= freed as u32;
        if freed > 0 {
            self.relist(area, cluster, &mut state);
        }
        freed
    }

    /// Puts a cluster on the list its count asks for, unless it is a CPU's current one.
    pub(crate) fn relist(&self, area: &AreaState, cluster: u32, state: &mut ClusterGuard<'_>) {
        let order = state.order;
        self.relist_as(area, cluster, state, ListKind::Nonfull(order));
    }

    fn relist_as(
        &self,
        area: &AreaState,
        cluster: u32,
        state: &mut ClusterGuard<'_>,
        partly: ListKind,
    ) {
        if state.list == ListKind::Current {
            return;
        }
        let wanted = match state.used {
            0 if area.config.discard => ListKind::Discard,
            0 => ListKind::Free,
            used if used >= area.tuning().cluster_slots => ListKind::Full,
            _ => partly,
        };
        if wanted != state.list {
            self.relink(cluster, state, wanted);
        }
    }

    pub(crate) fn relink(&self, cluster: u32, state: &mut ClusterGuard<'_>, to: ListKind) {
        self.lists.lock().relink(cluster, state.list, to);
        state.list = to;
    }

    /// Returns the cluster that has been full longest and moves it to its list's tail; `None` also
    /// if it has just ceased to be full.
    pub(crate) fn next_full(&self) -> Option<u32> {
        let first = self.lists.lock().first(ListKind::Full)?;
        let mut state = self.cluster(first).lock();
        (state.list == ListKind::Full).then(|| {
            self.relink(first, &mut state, ListKind::Full);
            first
        })
    }

    /// Takes a cluster off the discard list; nothing is allocated from it before
    /// [`discarded`](Self::discarded).
    pub(crate) fn take_discard(&self) -> Option<u32> {
        loop {
            let first = self.lists.lock().first(ListKind::Discard)?;
            let mut state = self.cluster(first).lock();
            if state.list == ListKind::Discard {
                self.relink(first, &mut state, ListKind::Current);
                return Some(first);
            }
        }
    }

    /// Frees a cluster whose content the device has discarded.
    pub(crate) fn discarded(&self, cluster: u32) {
        let mut state = self.cluster(cluster).lock();
        debug_assert_eq!(state.used, 0, "cluster {cluster} was allocated from while discarded");
        self.relink(cluster, &mut state, ListKind::Free);
    }

    /// Lists a fresh cluster. False if there is none below the capacity.
    fn list_fresh(&self, area: &AreaState) -> bool {
        let clusters = area.capacity_slots() / area.tuning().cluster_slots;
        if self.listed.load(Relaxed) >= clusters {
            return false;
        }
        let order = FreshOrder::new(0..clusters, area.clusters_per_trunk());
        let start = self.next_fresh.load(Relaxed);
        for step in 0..order.len() {
            let at = (start + step) % order.len();
            if order.cluster(at).is_some_and(|cluster| self.list_if_fresh(area, cluster)) {
                self.next_fresh.store(at + 1, Relaxed);
                return true;
            }
        }
        false
    }

    fn list_if_fresh(&self, area: &AreaState, cluster: u32) -> bool {
        let mut state = self.cluster(cluster).lock();
        if state.list != ListKind::None {
            return false;
        }
        // Some of its slots may be reserved.
        state.used = area.count_used(cluster);
        match state.used {
            // Nothing was ever there to be discarded.
            0 => self.relink(cluster, &mut state, ListKind::Free),
            _ => self.relist(area, cluster, &mut state),
        }
        self.listed.fetch_add(1, Relaxed);
        true
    }
}
