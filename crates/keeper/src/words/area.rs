//! What front and keeper say about a swap area.
//!
//! Owns: the form of that.
//! Not here: the areas (`swaps`).

use super::{Packet, WordError, kind};
use overspill_base::Bytes;
use overspill_device::compressed::Usage;

/// A swap area.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AreaState {
    /// Its number.
    pub number: usize,
    /// True while it is being swapped off.
    pub leaving: bool,
    /// Its name.
    pub name: String,
    /// What the user should know about it, one line each.
    pub notes: Vec<String>,
    /// Its size when fully grown.
    pub capacity: Bytes,
    /// What is in use.
    pub used: Bytes,
    /// The most that ever was.
    pub used_most: Bytes,
    /// What compressed memory holds.
    pub compressed: Option<Usage>,
}

/// The first line is the name. Notes that do not fit are cut.
pub(super) fn write_area(area: &AreaState) -> Packet {
    let AreaState { number, leaving, name, notes, capacity, used, used_most, compressed } = area;
    let usage = compressed.unwrap_or_default();
    let words = [
        capacity.0,
        used.0,
        used_most.0,
        compressed.is_some().into(),
        usage.held_pages,
        usage.filled_pages,
        usage.incompressible_pages,
        usage.compressed_bytes,
        usage.memory_bytes,
        usage.held_pages_max,
        usage.memory_bytes_max,
        *number as u64,
        (*leaving).into(),
    ];
    let lines: Vec<&str> = [name].into_iter().chain(notes).map(String::as_str).collect();
    Packet::new(kind::AREA, &words).with_line(&lines.join("\n"))
}

pub(super) fn read_area(packet: &Packet) -> Result<AreaState, WordError> {
    let words = &packet.words;
    let usage = Usage {
        held_pages: words[4],
        filled_pages: words[5],
        incompressible_pages: words[6],
        compressed_bytes: words[7],
        memory_bytes: words[8],
        held_pages_max: words[9],
        memory_bytes_max: words[10],
    };
    let text = packet.text()?;
    let mut lines = text.split('\n').map(str::to_owned);
    Ok(AreaState {
        number: words[11] as usize,
        leaving: packet.flag(12, "leave")?,
        name: lines.next().unwrap_or_default(),
        notes: lines.collect(),
        capacity: Bytes(words[0]),
        used: Bytes(words[1]),
        used_most: Bytes(words[2]),
        compressed: packet.flag(3, "usage")?.then_some(usage),
    })
}
