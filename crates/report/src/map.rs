//! A picture of which memory of a program came when: time to the right, addresses downward.
//!
//! Owns: how much is counted together. A picture of a run of any length has at most [`COLUMNS`]
//! columns and [`ROWS_MAX`] blocks: when there would be more, twice the time, or twice the memory,
//! is counted together.
//! Invariants: memory that nothing came to takes no room; every page that came is in one cell.
//! Not here: the address space's order beyond that: a line divides blocks that are no neighbours.

use crate::picture::{BLUE, Colour, ORANGE, Picture, WHITE, mix};
use maud::{Markup, html};
use overspill_base::{Bytes, PAGE_SIZE};
use std::collections::{BTreeMap, HashMap};

const COLUMNS: u32 = 450;
const ROWS_MAX: usize = 400;
/// The least time and memory that are counted together.
const COLUMN_SECONDS: f64 = 0.01;
const BLOCK_BYTES: u64 = 16 * PAGE_SIZE as u64;
/// Pixels of a column, and the least of a row.
const COLUMN_PIXELS: u32 = 2;
const HEIGHT_PIXELS: u32 = 360;
/// Beside the picture, for names.
const LEFT_PIXELS: u32 = 150;
const LABEL_PIXELS: u32 = 14;

/// Why a page came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// It was touched for the first time.
    New,
    /// It was read from swap.
    Read,
}

/// Where and when pages came.
#[derive(Clone, Debug)]
pub struct ArrivalMap {
    column_seconds: f64,
    block_bytes: u64,
    cells: HashMap<(Block, u32), Cell>,
    /// The number of cells of each.
    blocks: BTreeMap<Block, usize>,
    /// What processes are called.
    names: BTreeMap<u32, String>,
    /// Pages that came too fast to be noted.
    pub missed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Block {
    process: u32,
    /// Its address by its size.
    number: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Cell {
    new: u32,
    read: u32,
}

impl Default for ArrivalMap {
    fn default() -> Self {
        Self {
            column_seconds: COLUMN_SECONDS,
            block_bytes: BLOCK_BYTES,
            cells: HashMap::new(),
            blocks: BTreeMap::new(),
            names: BTreeMap::new(),
            missed: 0,
        }
    }
}

impl ArrivalMap {
    /// Notes a page that came, `seconds` after the start, to an address of a process of the run.
    pub fn note(&mut self, seconds: f64, process: u32, address: u64, arrival: Arrival) {
        while self.column_of(seconds) >= COLUMNS {
            self.column_seconds *= 2.0;
            self.count_together(|block, column| (block, column / 2));
        }
        let column = self.column_of(seconds);
        let block = Block { process, number: address / self.block_bytes };
        let one = match arrival {
            Arrival::New => Cell { new: 1, read: 0 },
            Arrival::Read => Cell { new: 0, read: 1 },
        };
        self.add(block, column, one);
        while self.blocks.len() > ROWS_MAX && self.blocks.len() > self.processes() {
            self.block_bytes *= 2;
            self.count_together(|block, column| {
                (Block { number: block.number / 2, ..block }, column)
            });
        }
    }

    /// Says what a process is called.
    pub fn call(&mut self, process: u32, name: &dyn Fn() -> String) {
        self.names.entry(process).or_insert_with(name);
    }

    fn column_of(&self, seconds: f64) -> u32 {
        (seconds / self.column_seconds) as u32
    }

    fn processes(&self) -> usize {
        let mut all: Vec<u32> = self.blocks.keys().map(|block| block.process).collect();
        all.dedup();
        all.len()
    }

    fn add(&mut self, block: Block, column: u32, more: Cell) {
        let cell = self.cells.entry((block, column)).or_insert_with(|| {
            *self.blocks.entry(block).or_insert(0) += 1;
            Cell::default()
        });
        cell.new = cell.new.saturating_add(more.new);
        cell.read = cell.read.saturating_add(more.read);
    }

    /// Moves each cell to another place, and adds up those that meet there.
    fn count_together(&mut self, place: impl Fn(Block, u32) -> (Block, u32)) {
        self.blocks.clear();
        for ((block, column), cell) in std::mem::take(&mut self.cells) {
            let (block, column) = place(block, column);
            self.add(block, column, cell);
        }
    }

    /// The blocks from top to bottom, with nothing between those that are no neighbours.
    fn rows(&self) -> Vec<Option<Block>> {
        let mut rows = Vec::new();
        let mut before: Option<Block> = None;
        for &block in self.blocks.keys() {
            let is_next = before.is_some_and(|before| {
                before.process == block.process && before.number + 1 == block.number
            });
            if before.is_some() && !is_next {
                rows.push(None);
            }
            rows.push(Some(block));
            before = Some(block);
        }
        rows
    }
}

const GAP: Colour = [0xe8; 3];

/// The colour of a cell: of what came most, the darker the more, by powers of two.
fn colour(cell: Cell, most: u32) -> Colour {
    let all = cell.new.saturating_add(cell.read);
    let strength = (1.0 + f64::from(all).log2()) / (1.0 + f64::from(most.max(1)).log2());
    let full = if cell.read > cell.new { BLUE } else { ORANGE };
    mix(&[(full, 0.15 + 0.85 * strength.clamp(0.0, 1.0))])
}

impl ArrivalMap {
    /// As many columns as are needed, and at least one.
    fn picture(&self, rows: &[Option<Block>]) -> Picture {
        let columns = self.cells.keys().map(|&(_, column)| column + 1).max().unwrap_or(1);
        let most = self.cells.values().map(|cell| cell.new.saturating_add(cell.read)).max();
        let colour_at = |block: Block, column| {
            let cell = self.cells.get(&(block, column));
            cell.map_or(WHITE, |cell| colour(*cell, most.unwrap_or(1)))
        };
        let row = |row: &Option<Block>| {
            let block = *row;
            (0..columns).map(move |column| block.map_or(GAP, |block| colour_at(block, column)))
        };
        Picture::new(columns as usize, rows.iter().flat_map(row).collect())
    }

    /// Names for rows: a process's at its first one, an address where blocks are no neighbours; as
    /// many as there is room for.
    fn labels(&self, rows: &[Option<Block>], row_pixels: f64) -> Vec<(f64, String)> {
        let (mut labels, mut free_from, mut process) = (Vec::new(), 0.0, None);
        for (n, row) in rows.iter().enumerate() {
            let Some(block) = row else { continue };
            let at = n as f64 * row_pixels;
            let is_first = n == 0 || rows[n - 1].is_none();
            if process != Some(block.process) && at >= free_from {
                process = Some(block.process);
                let name = self.names.get(&block.process).cloned();
                labels.push((at, name.unwrap_or_else(|| format!("process {}", block.process))));
                free_from = at + f64::from(LABEL_PIXELS);
            } else if is_first && at >= free_from {
                labels.push((at, format!("{:#x}", block.number * self.block_bytes)));
                free_from = at + f64::from(LABEL_PIXELS);
            }
        }
        labels
    }

    /// The part of a report.
    pub(crate) fn section(&self) -> Markup {
        let rows = self.rows();
        let picture = self.picture(&rows);
        let (columns, count) = (picture.columns() as u32, picture.rows() as u32);
        let (width, height) = (columns * COLUMN_PIXELS, HEIGHT_PIXELS.max(count));
        let row_pixels = f64::from(height) / f64::from(count.max(1));
        let labels = self.labels(&rows, row_pixels);
        let seconds = f64::from(columns) * self.column_seconds;
        let (all_width, all_height) = (LEFT_PIXELS + COLUMNS * COLUMN_PIXELS, height + 40);
        html! {
            h2 { "Which memory came when" }
            svg width=(all_width) height=(all_height) xmlns="http://www.w3.org/2000/svg" {
                image x=(LEFT_PIXELS) y="10" width=(width) height=(height) href=(picture.data_url())
                    preserveAspectRatio="none" style="image-rendering:pixelated" {}
                rect x=(LEFT_PIXELS) y="10" width=(width) height=(height) fill="none" stroke="#999" {}
                @for (at, text) in &labels {
                    text x=(LEFT_PIXELS - 6) y=(at + 18.0) text-anchor="end" font-size="11" { (text) }
                }
                text x=(LEFT_PIXELS) y=(height + 28) font-size="11" { "0 s" }
                text x=(LEFT_PIXELS + width) y=(height + 28) text-anchor="end" font-size="11" {
                    (format!("{seconds:.1} s"))
                }
            }
            p.note {
                "Blue: pages read from swap; orange: pages touched for the first time; darker is more. A row is "
                (Bytes(self.block_bytes)) " of a process, and a column "
                (format!("{:.0} ms", self.column_seconds * 1e3))
                "; grey lines stand for addresses without such pages."
                @if self.missed > 0 { " " (self.missed) " pages came too fast to be noted." }
            }
        }
    }

    /// True if nothing came.
    pub(crate) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(map: &ArrivalMap) -> (u32, u32) {
        let sum = |of: fn(&Cell) -> u32| map.cells.values().map(of).sum();
        (sum(|cell| cell.new), sum(|cell| cell.read))
    }

    #[test]
    fn any_run_fits_and_no_page_is_left_out() {
        let mut map = ArrivalMap::default();
        for n in 0..20_000u64 {
            let arrival = if n % 3 == 0 { Arrival::New } else { Arrival::Read };
            map.note(n as f64, (n % 2) as u32, n * 100_000 % (1 << 34), arrival);
        }
        assert_eq!(total(&map), (6667, 13_333));
        assert!(map.blocks.len() <= ROWS_MAX);
        assert!(map.cells.keys().all(|&(_, column)| column < COLUMNS));
        assert_eq!(map.blocks.values().sum::<usize>(), map.cells.len());
        let picture = map.picture(&map.rows());
        assert!(picture.columns() <= COLUMNS as usize && picture.rows() >= 2);
    }

    #[test]
    fn blocks_that_are_no_neighbours_are_divided() {
        let mut map = ArrivalMap::default();
        for address in [0, BLOCK_BYTES, 5 * BLOCK_BYTES] {
            map.note(0.0, 1, address, Arrival::Read);
        }
        map.note(0.0, 2, 0, Arrival::New);
        map.call(1, &|| "sort 42".into());
        let block = |process, number| Some(Block { process, number });
        let rows = map.rows();
        assert_eq!(rows, [block(1, 0), block(1, 1), None, block(1, 5), None, block(2, 0)]);
        let labels = map.labels(&rows, 20.0);
        let names: Vec<&str> = labels.iter().map(|(_, name)| &**name).collect();
        assert_eq!(names, ["sort 42", "0x50000", "process 2"]);
        assert!(map.section().into_string().contains("data:image/png;base64,"));
    }

    #[test]
    fn what_came_most_gives_the_colour_and_more_is_darker() {
        let read = |read| colour(Cell { new: 1, read }, 1000);
        assert!(read(1000)[0] < read(2)[0]);
        assert_eq!(colour(Cell { new: 0, read: 1000 }, 1000), BLUE);
        assert_eq!(colour(Cell { new: 1000, read: 0 }, 1000), ORANGE);
    }
}
