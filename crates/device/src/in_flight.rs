//! Stores what a decorator needs to know of a request while the device has it.
//!
//! Owns: numbered places, whose numbers replace the submitter's tag.
//! Invariants: a number is given to one item at a time, and its place is reused afterwards; so the
//! memory is that of the most items ever stored at once.

/// Items stored under numbers.
#[derive(Debug)]
pub(crate) struct InFlight<T> {
    places: Vec<Option<T>>,
    idle: Vec<usize>,
}

impl<T> InFlight<T> {
    /// An empty store; `depth` items fit before more memory is allocated.
    pub(crate) fn new(depth: u32) -> Self {
        let depth = depth as usize;
        Self { places: Vec::with_capacity(depth), idle: Vec::with_capacity(depth) }
    }

    /// Stores `item` and returns its number.
    pub(crate) fn put(&mut self, item: T) -> u64 {
        let place = self.idle.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(item);
        place as u64
    }

    /// Removes and returns the item stored under `number`.
    ///
    /// # Panics
    /// If there is none: a device has completed a request twice, or one that was never submitted.
    pub(crate) fn take(&mut self, number: u64) -> T {
        let place = number as usize;
        let item = self.places[place].take().expect("a request completes exactly once");
        self.idle.push(place);
        item
    }

    /// The item stored under `number`, which stays there.
    ///
    /// # Panics
    /// As [`take`](Self::take).
    pub(crate) fn get_mut(&mut self, number: u64) -> &mut T {
        self.places[number as usize].as_mut().expect("a request completes exactly once")
    }

    /// All stored items.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }
}
