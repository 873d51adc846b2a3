//! What of a table is in memory.

use overspill_base::PAGE_SIZE;
use overspill_base::sync::AtomicU64;
use std::os::unix::fs::FileExt;

/// Bytes of `table` in pages of its own, page by page: the kernel may merge its mapping with a
/// neighbour's. The zero page, which reading maps, is nobody's own.
pub(crate) fn resident_bytes(table: &[AtomicU64]) -> usize {
    const ONLY_MAPPED_HERE: u64 = 1 << 56;
    let first = table.as_ptr().addr() / PAGE_SIZE;
    let mut entries = vec![0; size_of_val(table) / PAGE_SIZE * size_of::<u64>()];
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    pagemap.read_exact_at(&mut entries, (first * size_of::<u64>()) as u64).unwrap();
    let entries = entries.chunks_exact(size_of::<u64>());
    let own = |entry: &[u8]| u64::from_le_bytes(entry.try_into().unwrap()) & ONLY_MAPPED_HERE != 0;
    entries.filter(|&entry| own(entry)).count() * PAGE_SIZE
}
