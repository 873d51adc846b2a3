//! Doubly linked lists of small numbers, over one table of links.
//!
//! Owns: the links. Several lists share a table; a number is on one of them at most.
//! Invariants: the caller knows which list a number is on, and says it when it unlinks it.
//! Not here: locks; which list a number belongs on.

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

/// The links of all numbers below some size, which grows as numbers are linked.
#[derive(Clone, Debug, Default)]
pub struct Links(Vec<Link>);

/// The ends of one list.
#[derive(Clone, Copy, Debug)]
pub struct List {
    first: u32,
    last: u32,
    len: usize,
}

impl Default for List {
    fn default() -> Self {
        Self { first: NIL, last: NIL, len: 0 }
    }
}

impl List {
    /// Numbers on the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if nothing is on the list.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number at the front.
    pub fn first(&self) -> Option<u32> {
        present(self.first)
    }

    /// The number at the back.
    pub fn last(&self) -> Option<u32> {
        present(self.last)
    }
}

impl Links {
    /// Links for the numbers below `len`, none on a list.
    pub fn new(len: usize) -> Self {
        Self(vec![Link { prev: NIL, next: NIL }; len])
    }

    /// Puts a number that is on no list at the front of one.
    pub fn push_front(&mut self, list: &mut List, number: u32) {
        let old = std::mem::replace(&mut list.first, number);
        list.len += 1;
        self.grow_to(number)[number as usize] = Link { prev: NIL, next: old };
        match present(old) {
            None => list.last = number,
            Some(old) => self.0[old as usize].prev = number,
        }
    }

    /// Puts a number that is on no list at the back of one.
    pub fn push_back(&mut self, list: &mut List, number: u32) {
        let old = std::mem::replace(&mut list.last, number);
        list.len += 1;
        self.grow_to(number)[number as usize] = Link { prev: old, next: NIL };
        match present(old) {
            None => list.first = number,
            Some(old) => self.0[old as usize].next = number,
        }
    }

    /// Takes a number off `list`, which it is on.
    ///
    /// # Panics
    /// If it was never linked.
    pub fn unlink(&mut self, list: &mut List, number: u32) {
        let Link { prev, next } = self.0[number as usize];
        list.len -= 1;
        match present(prev) {
            None => list.first = next,
            Some(prev) => self.0[prev as usize].next = next,
        }
        match present(next) {
            None => list.last = prev,
            Some(next) => self.0[next as usize].prev = prev,
        }
    }

    /// The numbers of a list from front to back.
    pub fn iter(&self, list: &List) -> impl Iterator<Item = u32> + '_ {
        let next = |&number: &u32| present(self.0[number as usize].next);
        std::iter::successors(list.first(), next)
    }

    fn grow_to(&mut self, number: u32) -> &mut Vec<Link> {
        if self.0.len() <= number as usize {
            self.0.resize(number as usize + 1, Link { prev: NIL, next: NIL });
        }
        &mut self.0
    }
}

fn present(number: u32) -> Option<u32> {
    (number != NIL).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_moves_between_two_lists() {
        let (mut links, mut a, mut b) = (Links::new(2), List::default(), List::default());
        links.push_back(&mut a, 1);
        links.push_back(&mut a, 3);
        links.push_front(&mut a, 0);
        assert_eq!(links.iter(&a).collect::<Vec<_>>(), [0, 1, 3]);
        links.unlink(&mut a, 1);
        links.push_back(&mut b, 1);
        assert_eq!((a.first(), a.last(), a.len()), (Some(0), Some(3), 2));
        assert_eq!((b.first(), b.last(), b.len()), (Some(1), Some(1), 1));
        links.unlink(&mut b, 1);
        links.unlink(&mut a, 3);
        links.unlink(&mut a, 0);
        assert!(a.is_empty() && b.is_empty() && links.iter(&a).next().is_none());
    }
}
