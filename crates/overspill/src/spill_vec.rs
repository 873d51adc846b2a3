//! A vector larger than memory.
//!
//! Owns: where an element is, the order in which pages are read ahead, and what fits into a page.
//! Elements are plain data ([`Pod`]) and do not straddle pages: page k has elements `k * n` to
//! `(k + 1) * n - 1`, where n is the number of whole elements in a page.
//! Invariants: the pages of its elements belong to the vector alone, and no guard of one outlives a
//! call, so discarding them on drop waits for no other user.
//! Not here: which pages are in memory (`engine`).
//! Rejected: `Index`. It returns a reference, and a reference into a page is valid only as long as
//! its page stays, which takes a guard; values are copied, and [`SpillVec::with`] and
//! [`SpillVec::update`] lend references for a call.

use crate::pool::{Pool, PoolError};
use bytemuck::Pod;
use overspill_base::PageNo;
use overspill_base::sync::AtomicUsize;
use overspill_base::sync::Ordering::Relaxed;
use std::marker::PhantomData;

/// Window of an iteration's readahead: two of them are in flight or in memory ahead of it.
const WINDOW_BYTES: usize = 256 << 10;

/// A vector of which only a part is in memory at any time.
///
/// Elements are changed through `&self`, each page under its own lock, so threads can share a
/// vector. A call that takes a closure holds the page's lock meanwhile: the closure must not use an
/// element of the same vector.
///
/// ```
/// use overspill::{Bytes, Pool, SpillVec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Pool::builder().memory(Bytes(4 << 20)).swap("ram:32M".parse()?).build()?;
/// let mut squares = SpillVec::new(&pool);
/// squares.try_extend((0..2_000_000u64).map(|n| n * n))?;
/// assert_eq!(squares.get(1_000_000)?, Some(1_000_000_000_000));
/// squares.set(7, 0)?;
/// let first = squares.iter().take(9).collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(first, [0, 1, 4, 9, 16, 25, 36, 0, 64]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SpillVec<T: Pod> {
    pool: Pool,
    /// First pages of runs of 1, 2, 4, ... pages.
    runs: Vec<PageNo>,
    len: usize,
    per_page: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> SpillVec<T> {
    /// Makes an empty vector in `pool`.
    ///
    /// # Panics
    /// If a `T` is larger than a page, or zero-sized.
    pub fn new(pool: &Pool) -> Self {
        let per_page = pool.page_size().checked_div(size_of::<T>()).unwrap_or(0);
        assert!(
            per_page > 0,
            "an element of {} bytes in pages of {}",
            size_of::<T>(),
            pool.page_size()
        );
        Self { pool: pool.clone(), runs: Vec::new(), len: 0, per_page, elements: PhantomData }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of pages that have elements.
    fn pages(&self) -> usize {
        self.len.div_ceil(self.per_page)
    }

    /// The page number in the pool of the vector's `nth` page.
    fn page(&self, nth: usize) -> PageNo {
        let run = (nth + 1).ilog2();
        self.runs[run as usize].plus(nth + 1 - (1 << run))
    }

    /// Where element `index` is: the vector's page, and the index in it.
    fn place(&self, index: usize) -> (usize, usize) {
        (index / self.per_page, index % self.per_page)
    }

    /// The elements of a page that has `count`.
    fn elements(bytes: &[u8], count: usize) -> &[T] {
        bytemuck::cast_slice(&bytes[..count * size_of::<T>()])
    }

    fn elements_mut(bytes: &mut [u8], count: usize) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut bytes[..count * size_of::<T>()])
    }

    /// Returns a copy of element `index`; none past the end.
    ///
    /// # Errors
    /// See [`PoolError`].
    #[inline]
    pub fn get(&self, index: usize) -> Result<Option<T>, PoolError> {
        if index >= self.len {
            return Ok(None);
        }
        let (page, at) = self.place(index);
        match self.pool.look_any(self.page(page), at * size_of::<T>()) {
            Some(value) => Ok(Some(value)),
            None => self.with(index, |value| *value).map(Some),
        }
    }

    /// Replaces element `index`.
    ///
    /// # Errors
    /// See [`PoolError`].
    ///
    /// # Panics
    /// If `index` is past the end.
    #[inline]
    pub fn set(&self, index: usize, value: T) -> Result<(), PoolError> {
        self.update(index, |element| *element = value)
    }

    /// Lends element `index` to `f`.
    ///
    /// # Errors
    /// See [`PoolError`].
    ///
    /// # Panics
    /// If `index` is past the end.
    #[inline]
    pub fn with<R>(&self, index: usize, f: impl FnOnce(&T) -> R) -> Result<R, PoolError> {
        assert!(index < self.len, "element {index} of {}", self.len);
        let (page, at) = self.place(index);
        let guard = self.pool.read_any(self.page(page))?;
        Ok(f(&Self::elements(&guard, at + 1)[at]))
    }

    /// Lends element `index` to `f` to change it.
    ///
    /// # Errors
    /// See [`PoolError`].
    ///
    /// # Panics
    /// If `index` is past the end.
    #[inline]
    pub fn update<R>(&self, index: usize, f: impl FnOnce(&mut T) -> R) -> Result<R, PoolError> {
        assert!(index < self.len, "element {index} of {}", self.len);
        let (page, at) = self.place(index);
        let mut guard = self.pool.write_any(self.page(page))?;
        Ok(f(&mut Self::elements_mut(&mut guard, at + 1)[at]))
    }

    /// Appends an element.
    ///
    /// # Errors
    /// See [`PoolError`]; the vector is then unchanged.
    pub fn push(&mut self, value: T) -> Result<(), PoolError> {
        self.try_extend([value])
    }

    /// Appends the items of `values`. The iterator's code runs while the last page is locked.
    ///
    /// # Errors
    /// See [`PoolError`]; then the values before it were appended, those after were not, and one
    /// that was to begin a page may have been taken from `values`.
    pub fn try_extend(&mut self, values: impl IntoIterator<Item = T>) -> Result<(), PoolError> {
        let mut values = values.into_iter().peekable();
        while values.peek().is_some() {
            let (nth, start) = self.place(self.len);
            self.make_room(nth)?;
            let mut guard = self.pool.write_any(self.page(nth))?;
            let page = Self::elements_mut(&mut guard, self.per_page);
            let mut filled = start;
            for (place, value) in page[start..].iter_mut().zip(values.by_ref()) {
                *place = value;
                filled += 1;
            }
            drop(guard);
            self.len += filled - start;
        }
        Ok(())
    }

    /// Ensures that the vector's `nth` page, the first without one, has a page number.
    fn make_room(&mut self, nth: usize) -> Result<(), PoolError> {
        let order = (nth + 1).ilog2();
        if order as usize == self.runs.len() {
            let run = self.pool.runs().take(order);
            self.runs.push(run.ok_or(PoolError::NoPages { pages: 1 << order })?);
        }
        Ok(())
    }

    /// Removes all elements; frees their memory and swap.
    pub fn clear(&mut self) {
        let mut pages = self.pages();
        for (order, run) in self.runs.drain(..).enumerate() {
            let used = pages.min(1 << order);
            self.pool.discard_any(run, used);
            self.pool.runs().free(run, order as u32);
            pages -= used;
        }
        self.len = 0;
    }

    /// Iterates over the elements in order. Pages are read ahead, so it runs at the speed of the
    /// swap device.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { vec: self, ahead: Prefetcher::of(self), page: Vec::new(), at: 0, next: 0 }
    }

    /// Calls `f` with every page's elements and the index of the first, in no order, on `threads`
    /// threads. Pages are read ahead.
    ///
    /// ```
    /// # use overspill::{Bytes, Pool, SpillVec};
    /// # let pool = Pool::builder().memory(Bytes(4 << 20)).swap("ram:32M".parse()?).build()?;
    /// let mut numbers = SpillVec::new(&pool);
    /// numbers.try_extend(0..1_000_000u32)?;
    /// numbers.for_each_chunk(2, |_, chunk| chunk.iter_mut().for_each(|number| *number *= 2))?;
    /// assert_eq!(numbers.get(999_999)?, Some(1_999_998));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`PoolError`]; then `f` was not called for some pages.
    pub fn for_each_chunk(
        &self,
        threads: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) -> Result<(), PoolError>
    where
        T: Send + Sync,
    {
        // Each thread takes a window at a time, so that it uses what it reads ahead.
        let windows = AtomicUsize::new(0);
        let window = window_pages(&self.pool);
        let work = || -> Result<(), PoolError> {
            loop {
                let first = windows.fetch_add(1, Relaxed) * window;
                if first >= self.pages() {
                    return Ok(());
                }
                self.lend_pages(first..(first + window).min(self.pages()), &f)?;
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
            let ends = threads.into_iter().map(|thread| match thread.join() {
                Ok(end) => end,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ends.collect()
        })
    }

    fn lend_pages(
        &self,
        pages: std::ops::Range<usize>,
        f: impl Fn(usize, &mut [T]),
    ) -> Result<(), PoolError> {
        self.pool.prefetch_any(pages.clone().map(|nth| self.page(nth)))?;
        for nth in pages {
            let first = nth * self.per_page;
            let mut guard = self.pool.write_any(self.page(nth))?;
            f(first, Self::elements_mut(&mut guard, self.per_page.min(self.len - first)));
        }
        Ok(())
    }
}

/// Panics if [`SpillVec::try_extend`] fails, as other vectors do when memory runs out.
impl<T: Pod> Extend<T> for SpillVec<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        self.try_extend(values).unwrap_or_else(|error| panic!("{error}"));
    }
}

impl<'a, T: Pod> IntoIterator for &'a SpillVec<T> {
    type Item = Result<T, PoolError>;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<T: Pod> Drop for SpillVec<T> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Pages in a window: readahead never takes more than a quarter of the pool.
fn window_pages(pool: &Pool) -> usize {
    (WINDOW_BYTES / pool.page_size()).min(pool.frames() / 8).max(1)
}

/// Requests pages before they are needed.
#[derive(Debug)]
struct Prefetcher {
    window: usize,
    /// The first page not requested yet.
    next: usize,
}

impl Prefetcher {
    fn of<T: Pod>(vec: &SpillVec<T>) -> Self {
        Self { window: window_pages(&vec.pool), next: 0 }
    }

    /// Called before page `nth` is used: keeps at least one window ahead of it.
    fn reach<T: Pod>(&mut self, vec: &SpillVec<T>, nth: usize) -> Result<(), PoolError> {
        self.next = self.next.max(nth);
        if self.next > nth + self.window {
            return Ok(());
        }
        let end = (nth + 2 * self.window).min(vec.pages());
        self.next += vec.pool.prefetch_any((self.next..end).map(|nth| vec.page(nth)))?;
        Ok(())
    }
}

/// Iterator over the elements of a [`SpillVec`]. Made by [`SpillVec::iter`].
#[derive(Debug)]
pub struct Iter<'a, T: Pod> {
    vec: &'a SpillVec<T>,
    ahead: Prefetcher,
    /// A copy of a page, because a guard held between calls could make the caller wait for itself.
    page: Vec<T>,
    /// The next of its elements.
    at: usize,
    /// The page after it.
    next: usize,
}

impl<T: Pod> Iter<'_, T> {
    fn turn(&mut self) -> Result<(), PoolError> {
        let (vec, nth) = (self.vec, self.next);
        self.ahead.reach(vec, nth)?;
        let guard = vec.pool.read_any(vec.page(nth))?;
        let count = vec.per_page.min(vec.len - nth * vec.per_page);
        self.page.clear();
        self.page.extend_from_slice(SpillVec::elements(&guard, count));
        (self.at, self.next) = (0, nth + 1);
        Ok(())
    }
}

impl<T: Pod> Iterator for Iter<'_, T> {
    type Item = Result<T, PoolError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.page.len() {
            if self.next >= self.vec.pages() {
                return None;
            }
            if let Err(error) = self.turn() {
                // The next call continues after the page that failed.
                self.next += 1;
                return Some(Err(error));
            }
        }
        self.at += 1;
        Some(Ok(self.page[self.at - 1]))
    }
}
