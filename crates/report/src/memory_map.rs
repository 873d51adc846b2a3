//! A picture of where the memory of a process is now: a cell for each piece, addresses from left to
//! right and down.
//!
//! Owns: how much is counted together. There are at most [`CELLS_MAX`] cells: when there would be
//! more, twice the memory is counted together.
//! Invariants: memory that was never touched takes no room; every page that is somewhere is in one
//! cell.

use crate::picture::{BLUE, Colour, ORANGE, Picture, mix};
use maud::{Markup, html};
use overspill_base::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

const COLUMNS: usize = 128;
const CELLS_MAX: usize = COLUMNS * 32;
/// Pixels of a cell on the page.
const CELL_PIXELS: usize = 6;
/// The least pages of a cell.
const BLOCK_PAGES: u64 = 4;

/// Where the memory of a process is.
#[derive(Clone, Debug)]
pub struct MemoryMap {
    /// What the process is called.
    name: String,
    block_pages: u64,
    /// By their numbers: the address of a block by its size.
    cells: BTreeMap<u64, Cell>,
}

/// Pages.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Cell {
    in_memory: u64,
    out: u64,
}

impl Cell {
    fn add(&mut self, more: Self) {
        self.in_memory += more.in_memory;
        self.out += more.out;
    }
}

impl MemoryMap {
    /// Nothing yet, of a process.
    pub fn new(name: String) -> Self {
        Self { name, block_pages: BLOCK_PAGES, cells: BTreeMap::new() }
    }

    /// Notes a run of pages that are in memory, or out.
    pub fn note(&mut self, mut run: Range<u64>, in_memory: bool) {
        while run.start < run.end {
            let block = run.start / self.block_pages;
            let end = run.end.min((block + 1) * self.block_pages);
            let pages = end - run.start;
            let more = match in_memory {
                true => Cell { in_memory: pages, out: 0 },
                false => Cell { in_memory: 0, out: pages },
            };
            self.cells.entry(block).or_default().add(more);
            run.start = end;
            while self.cells.len() > CELLS_MAX {
                self.count_together();
            }
        }
    }

    fn count_together(&mut self) {
        self.block_pages *= 2;
        for (block, cell) in std::mem::take(&mut self.cells) {
            self.cells.entry(block / 2).or_default().add(cell);
        }
    }

    fn total(&self) -> Cell {
        let mut total = Cell::default();
        self.cells.values().for_each(|cell| total.add(*cell));
        total
    }

    /// Its part of a page.
    pub(crate) fn section(&self) -> Markup {
        let picture = self.picture();
        let size = |cells: usize| cells * CELL_PIXELS;
        let Cell { in_memory, out } = self.total();
        html! {
            h3 { (self.name) ": " (Bytes::of_pages(in_memory)) " in memory, " (Bytes::of_pages(out)) " out" }
            img alt="where its memory is" width=(size(picture.columns())) height=(size(picture.rows()))
                src=(picture.data_url())
                style="image-rendering:pixelated;border:1px solid #999";
            p.note {
                "A cell is " (Bytes::of_pages(self.block_pages))
                ", by address; blue is in memory, orange is in swap, white was never touched."
            }
        }
    }

    fn picture(&self) -> Picture {
        let pixels = self.cells.values().map(|cell| colour(*cell, self.block_pages)).collect();
        Picture::new(COLUMNS, pixels)
    }
}

/// The colour of a cell of so many pages: of each kind as much as there is of it.
fn colour(cell: Cell, pages: u64) -> Colour {
    let part = |count: u64| count as f64 / pages as f64;
    mix(&[(BLUE, part(cell.in_memory)), (ORANGE, part(cell.out))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::WHITE;

    #[test]
    fn any_memory_fits_and_no_page_is_left_out() {
        let mut map = MemoryMap::new("sort".into());
        for n in 0..100_000u64 {
            map.note(n * 50..n * 50 + 7, n % 2 == 0);
        }
        assert!(map.cells.len() <= CELLS_MAX);
        assert_eq!(map.total(), Cell { in_memory: 350_000, out: 350_000 });
        (0..CELLS_MAX as u64 + 9).for_each(|n| map.note(n << 40..(n << 40) + 1, true));
        assert!(map.cells.len() <= CELLS_MAX);
        assert_eq!(map.picture().rows(), map.cells.len().div_ceil(COLUMNS));
    }

    #[test]
    fn a_cell_has_the_colours_of_what_is_in_it() {
        let of = |in_memory, out| colour(Cell { in_memory, out }, 8);
        assert_eq!([of(0, 0), of(8, 0), of(0, 8)], [WHITE, BLUE, ORANGE]);
        assert!(of(4, 0)[0] > BLUE[0] && of(4, 0)[0] < WHITE[0]);
    }

    #[test]
    fn the_section_says_what_is_where() {
        let mut map = MemoryMap::new("<sort>".into());
        map.note(0..256, true);
        map.note(256..1024, false);
        let section = map.section().into_string();
        assert!(section.contains("&lt;sort&gt;: 1 MiB in memory, 3 MiB out"), "{section}");
    }
}
