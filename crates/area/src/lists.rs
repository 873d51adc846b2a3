//! An area's cluster lists: free and nonfull, linked by index.
//!
//! Owns: the links. A cluster is on at most one list and its `Cluster::list` says which
//! (`SwapArea::check`). Full clusters are on none: freeing revives them.
//! Not here: the decision which list a cluster belongs on (`alloc`).

/// The list a cluster is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ListKind {
    /// Full, or not ours.
    #[default]
    None,
    /// Taken off the lists by one CPU, which allocates from it.
    Current,
    /// No slot used.
    Free,
    /// Some slots used, some free.
    Nonfull,
}

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

#[derive(Debug)]
struct Head {
    first: u32,
    last: u32,
    len: usize,
}

/// Both lists of one area.
#[derive(Debug, Default)]
pub(crate) struct ClusterLists {
    /// As long as the highest cluster ever listed asks.
    links: Vec<Link>,
    free: Head,
    nonfull: Head,
    /// Where the search for an unowned cluster goes on.
    pub(crate) adopt_next: u32,
}

impl Default for Head {
    fn default() -> Self {
        Self { first: NIL, last: NIL, len: 0 }
    }
}

impl ClusterLists {
    /// Clusters on a list.
    pub(crate) fn len(&self, kind: ListKind) -> usize {
        match kind {
            ListKind::Free => self.free.len,
            ListKind::Nonfull => self.nonfull.len,
            ListKind::None | ListKind::Current => 0,
        }
    }

    /// The cluster longest on `kind`.
    pub(crate) fn first(&self, kind: ListKind) -> Option<u32> {
        let first = match kind {
            ListKind::Free => self.free.first,
            ListKind::Nonfull => self.nonfull.first,
            ListKind::None | ListKind::Current => NIL,
        };
        (first != NIL).then_some(first)
    }

    /// Moves `cluster` from the list it is on to the tail of another.
    pub(crate) fn relink(&mut self, cluster: u32, from: ListKind, to: ListKind) {
        self.unlink(cluster, from);
        self.append(cluster, to);
    }

    fn head(&mut self, kind: ListKind) -> Option<&mut Head> {
        match kind {
            ListKind::Free => Some(&mut self.free),
            ListKind::Nonfull => Some(&mut self.nonfull),
            ListKind::None | ListKind::Current => None,
        }
    }

    fn unlink(&mut self, cluster: u32, kind: ListKind) {
        let Some(&Link { prev, next }) = self.links.get(cluster as usize) else { return };
        let Some(head) = self.head(kind) else { return };
        head.len -= 1;
        if prev == NIL {
            head.first = next;
        }
        if next == NIL {
            head.last = prev;
        }
        if prev != NIL {
            self.links[prev as usize].next = next;
        }
        if next != NIL {
            self.links[next as usize].prev = prev;
        }
    }

    fn append(&mut self, cluster: u32, kind: ListKind) {
        let Some(head) = self.head(kind) else { return };
        let last = std::mem::replace(&mut head.last, cluster);
        head.len += 1;
        if last == NIL {
            head.first = cluster;
        } else {
            self.links[last as usize].next = cluster;
        }
        if self.links.len() <= cluster as usize {
            self.links.resize(cluster as usize + 1, Link { prev: NIL, next: NIL });
        }
        self.links[cluster as usize] = Link { prev: last, next: NIL };
    }

    /// The clusters of a list, in order.
    pub(crate) fn iter(&self, kind: ListKind) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.first(kind);
        std::iter::from_fn(move || {
            let cluster = at?;
            let next = self.links[cluster as usize].next;
            at = (next != NIL).then_some(next);
            Some(cluster)
        })
    }
}
