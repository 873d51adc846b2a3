//! Tests on real files, memory and, where permitted, small file systems and loop devices.

mod discard;
mod io;
mod mkswap;
mod places;
mod privileged;
mod storage;

use super::{Features, FileDevice, OpenOptions};
use crate::error::DeviceError;
use crate::spec::SwapKind;
use overspill_base::Bytes;
use std::path::Path;

const SLOTS: u32 = 2048;

fn file(path: impl AsRef<Path>) -> SwapKind {
    sized(path, SLOTS)
}

fn sized(path: impl AsRef<Path>, slots: u32) -> SwapKind {
    let size = Some(Bytes::of_pages(slots.into()));
    SwapKind::File { path: path.as_ref().to_owned(), size }
}

fn open(kind: &SwapKind) -> Result<FileDevice, DeviceError> {
    FileDevice::open(&kind.clone().into(), &OpenOptions::default())
}

/// Opens a device from the text of a `--swap` option.
fn open_spec(text: &str) -> Result<FileDevice, DeviceError> {
    FileDevice::open(&text.parse()?, &OpenOptions::default())
}

fn open_with(kind: &SwapKind, features: Features) -> FileDevice {
    FileDevice::open_with(&kind.clone().into(), &OpenOptions::default(), features).unwrap()
}

fn insist(kind: &SwapKind) -> Result<FileDevice, DeviceError> {
    FileDevice::open(&kind.clone().into(), &OpenOptions { force: true, ..OpenOptions::default() })
}

/// Every way to drive a device and to get its space, each with a name for failure messages.
fn every_way() -> Vec<(&'static str, FileDevice)> {
    let disk = file(std::env::temp_dir());
    let ram = SwapKind::Ram { size: Bytes::of_pages(SLOTS.into()) };
    let all = Features::ALL;
    let mut ways = vec![
        ("as the machine allows", open_with(&disk, all)),
        ("without io_uring", open_with(&disk, Features { uring: false, ..all })),
        ("without O_DIRECT", open_with(&disk, Features { direct: false, ..all })),
        ("without O_TMPFILE", open_with(&disk, Features { tmpfile: false, ..all })),
        ("without fallocate", open_with(&disk, Features { fallocate: false, ..all })),
        ("memory", open_with(&ram, all)),
    ];
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        ways.push(("tmpfs", open_with(&file(shm), all)));
    } else {
        println!("skipped: tmpfs, because there is no /dev/shm");
    }
    ways
}
