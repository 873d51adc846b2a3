//! Doubly linked lists of small numbers, over one table of links.
//!
//! Owns: the links. Several lists share a table; a number is on one of them at most.
//! Invariants: the caller knows which list a number is on, and says it when it unlinks it.
//! Not here: locks; which list a number belongs on.

use crate::zeroed;

/// A number plus one, or 0 for none, so that fresh links are zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct Place(u32);

impl Place {
    fn of(number: u32) -> Self {
        Self(number + 1)
    }

    fn number(self) -> Option<u32> {
        self.0.checked_sub(1)
    }
}

#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct Link {
    prev: Place,
    next: Place,
}

/// The links of all numbers below some size, which grows as numbers are linked.
#[derive(Clone, Debug, Default)]
pub struct Links(Vec<Link>);

/// The ends of one list.
#[derive(Clone, Copy, Debug, Default)]
pub struct List {
    first: Place,
    last: Place,
    len: usize,
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
        self.first.number()
    }

    /// The number at the back.
    pub fn last(&self) -> Option<u32> {
        self.last.number()
    }
}

impl Links {
    /// Links for the numbers below `len`, none on a list.
    pub fn new(len: usize) -> Self {
        Self(zeroed::slice(len).into_vec())
    }

    /// Puts a number that is on no list at the front of one.
    pub fn push_front(&mut self, list: &mut List, number: u32) {
        let place = Place::of(number);
        let next = std::mem::replace(&mut list.first, place);
        list.len += 1;
        self.grow_to(number)[number as usize] = Link { prev: Place::default(), next };
        match next.number() {
            None => list.last = place,
            Some(next) => self.0[next as usize].prev = place,
        }
    }

    /// Puts a number that is on no list at the back of one.
    pub fn push_back(&mut self, list: &mut List, number: u32) {
        let place = Place::of(number);
        let prev = std::mem::replace(&mut list.last, place);
        list.len += 1;
        self.grow_to(number)[number as usize] = Link { prev, next: Place::default() };
        match prev.number() {
            None => list.first = place,
            Some(prev) => self.0[prev as usize].next = place,
        }
    }

    /// Takes a number off `list`, which it is on.
    ///
    /// # Panics
    /// If it was never linked.
    pub fn unlink(&mut self, list: &mut List, number: u32) {
        let Link { prev, next } = self.0[number as usize];
        list.len -= 1;
        match prev.number() {
            None => list.first = next,
            Some(prev) => self.0[prev as usize].next = next,
        }
        match next.number() {
            None => list.last = prev,
            Some(next) => self.0[next as usize].prev = prev,
        }
    }

    /// The numbers of a list from front to back.
    pub fn iter(&self, list: &List) -> impl Iterator<Item = u32> + '_ {
        let next = |&number: &u32| self.0[number as usize].next.number();
        std::iter::successors(list.first(), next)
    }

    fn grow_to(&mut self, number: u32) -> &mut Vec<Link> {
        if self.0.len() <= number as usize {
            self.0.resize(number as usize + 1, Link::default());
        }
        &mut self.0
    }
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
