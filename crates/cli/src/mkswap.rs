//! `overspill mkswap`: makes a swap area of a file or a block device.
//!
//! Not here: what is refused and how an area is made, which the library owns.

use crate::args::MkswapArgs;
use crate::error::Error;
use crate::say;
use overspill::{MkswapOptions, NewArea};
use std::io::Write;
use uuid::Uuid;

/// Prints warnings, and one line about the new area.
///
/// # Errors
/// [`Error::Library`], [`Error::Output`].
pub(crate) fn mkswap(args: MkswapArgs) -> Result<u8, Error> {
    let MkswapArgs { label, uuid, check, force, path } = args;
    let uuid = uuid.unwrap_or_else(Uuid::new_v4);
    let options = MkswapOptions { label, uuid: uuid.into_bytes(), check, force };
    let area = overspill::mkswap(&path, &options).map_err(overspill::Error::from)?;
    area.notes.iter().for_each(say::line);
    writeln!(std::io::stdout(), "{}", described(&area, &options.label, uuid))?;
    Ok(0)
}

/// Describes an area in the words of util-linux, which other programs may look for.
fn described(area: &NewArea, label: &str, uuid: Uuid) -> String {
    let bytes = area.capacity.0;
    let label = if label.is_empty() { "no label".into() } else { format!("LABEL={label}") };
    let bad = match area.bad_pages {
        0 => String::new(),
        1 => ", 1 bad page".into(),
        bad => format!(", {bad} bad pages"),
    };
    format!(
        "Setting up swapspace version 1, size = {} ({bytes} bytes){bad}, {label}, UUID={uuid}",
        area.capacity
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::Bytes;

    #[test]
    fn the_line_says_size_bad_pages_label_and_uuid() {
        let area = |bad_pages| NewArea { capacity: Bytes(1044480), bad_pages, notes: Vec::new() };
        let uuid = Uuid::from_u128(0x00112233_4455_6677_8899_aabbccddeeff);
        let start = "Setting up swapspace version 1, size = 1020 KiB (1044480 bytes)";
        let end = "UUID=00112233-4455-6677-8899-aabbccddeeff";
        let table = [
            (0, "", "no label"),
            (0, "spill", "LABEL=spill"),
            (1, "spill", "1 bad page, LABEL=spill"),
            (7, "", "7 bad pages, no label"),
        ];
        for (bad_pages, label, middle) in table {
            let line = described(&area(bad_pages), label, uuid);
            assert_eq!(line, format!("{start}, {middle}, {end}"));
        }
    }
}
