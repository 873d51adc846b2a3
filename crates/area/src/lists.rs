//! Cluster lists, and the order of fresh clusters.
//!
//! Owns: which clusters are on which list. A cluster is on at most one; its [`ListKind`], kept with
//! the cluster's other state, names it (checked by `SwapArea::check`).
//! Not here: which list a cluster belongs on.

use overspill_base::list::{Links, List};

/// Number of folio orders: 1 page to 512.
pub(crate) const ORDERS: usize = 10;

/// The list a cluster is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ListKind {
    /// On none: never listed.
    #[default]
    None,
    /// On none: one CPU allocates from it.
    Current,
    /// No slot used.
    Free,
    /// Kept for folios of this order; a slot was freed since it was last searched.
    Nonfull(u8),
    /// Kept for folios of this order; had no room for one when it was last searched.
    Frag(u8),
    /// Every slot used.
    Full,
    /// No slot used; to be discarded before it is free.
    Discard,
}

impl ListKind {
    const COUNT: usize = 3 + 2 * ORDERS;

    fn index(self) -> Option<usize> {
        match self {
            ListKind::None | ListKind::Current => None,
            ListKind::Free => Some(0),
            ListKind::Full => Some(1),
            ListKind::Discard => Some(2),
            ListKind::Nonfull(order) => Some(3 + usize::from(order)),
            ListKind::Frag(order) => Some(3 + ORDERS + usize::from(order)),
        }
    }

    /// Iterates over the kinds that have a list.
    pub(crate) fn listed() -> impl Iterator<Item = ListKind> {
        let orders = (0..ORDERS as u8).flat_map(|o| [ListKind::Nonfull(o), ListKind::Frag(o)]);
        [ListKind::Free, ListKind::Full, ListKind::Discard].into_iter().chain(orders)
    }
}

/// All lists of one area.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterLists {
    links: Links,
    lists: [List; ListKind::COUNT],
}

impl ClusterLists {
    fn list(&self, kind: ListKind) -> Option<&List> {
        kind.index().map(|index| &self.lists[index])
    }

    /// Returns the number of clusters on a list.
    pub(crate) fn len(&self, kind: ListKind) -> usize {
        self.list(kind).map_or(0, List::len)
    }

    /// Returns the first cluster of a list, which has been on it longest.
    pub(crate) fn first(&self, kind: ListKind) -> Option<u32> {
        self.list(kind)?.first()
    }

    /// Moves `cluster` from its list to the tail of another.
    pub(crate) fn relink(&mut self, cluster: u32, from: ListKind, to: ListKind) {
        if let Some(index) = from.index() {
            self.links.unlink(&mut self.lists[index], cluster);
        }
        if let Some(index) = to.index() {
            self.links.push_back(&mut self.lists[index], cluster);
        }
    }

    /// Iterates over the clusters of a list, in order.
    pub(crate) fn iter(&self, kind: ListKind) -> impl Iterator<Item = u32> + '_ {
        self.list(kind).into_iter().flat_map(|list| self.links.iter(list))
    }
}

/// The order in which fresh clusters are used: column by column of a table with one trunk per row.
/// Neighbours in it are a trunk apart, so CPUs that take one each do not share a trunk (Linux
/// 4.11).
#[derive(Clone, Debug)]
pub(crate) struct FreshOrder {
    clusters: std::ops::Range<u32>,
    columns: u32,
    first_row: u32,
    rows: u32,
}

impl FreshOrder {
    /// Makes the order of `clusters`, with `per_trunk` of them in a row.
    pub(crate) fn new(clusters: std::ops::Range<u32>, per_trunk: u32) -> Self {
        let columns = per_trunk.min(clusters.end).max(1);
        let first_row = clusters.start / columns;
        let rows = clusters.end.div_ceil(columns) - first_row;
        Self { clusters, columns, first_row, rows }
    }

    /// Returns the number of places in the table, including empty ones.
    pub(crate) fn len(&self) -> u32 {
        self.rows * self.columns
    }

    /// Returns the cluster at a place.
    pub(crate) fn cluster(&self, place: u32) -> Option<u32> {
        let (column, row) = (place / self.rows, place % self.rows + self.first_row);
        let cluster = row * self.columns + column;
        self.clusters.contains(&cluster).then_some(cluster)
    }

    /// Iterates over the clusters in this order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).filter_map(|place| self.cluster(place))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn neighbours_on_a_fresh_list_are_a_trunk_apart() {
        // Ten clusters, four to a trunk: rows 0-3, 4-7, 8-9.
        let order = |clusters, per_trunk| -> Vec<u32> {
            FreshOrder::new(clusters, per_trunk).iter().collect()
        };
        assert_eq!(order(0..10, 4), [0, 4, 8, 1, 5, 9, 2, 6, 3, 7]);
        assert_eq!(order(6..10, 4), [8, 9, 6, 7]);
        assert_eq!(order(0..3, u32::MAX), [0, 1, 2]);
        assert_eq!(order(0..0, 4), []);
    }

    #[test]
    fn a_cluster_moves_between_lists() {
        let mut lists = ClusterLists::default();
        for cluster in [3, 1, 2] {
            lists.relink(cluster, ListKind::None, ListKind::Free);
        }
        lists.relink(1, ListKind::Free, ListKind::Nonfull(9));
        assert_eq!(lists.iter(ListKind::Free).collect::<Vec<_>>(), [3, 2]);
        assert_eq!(lists.first(ListKind::Nonfull(9)), Some(1));
        lists.relink(3, ListKind::Free, ListKind::None);
        lists.relink(2, ListKind::Free, ListKind::Current);
        assert_eq!((lists.len(ListKind::Free), lists.first(ListKind::Free)), (0, None));
    }
}
