//! Grouping more keys than fit into memory: a hash table that is a [`SpillVec`].
//!
//! ```text
//! cargo run --release --example group_by
//! ```
//!
//! Sums up rows of a key and an amount by key, as in
//! `SELECT key, count(*), sum(amount) ... GROUP BY key`. The table uses open addressing: a key is
//! in the first place from its hash on that has this key or is empty.

use overspill::{Bytes, Pool, PoolError, SpillVec};

/// A place of the table; empty while its count is 0.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Group {
    key: u64,
    count: u64,
    sum: u64,
}

/// A table with twice as many places as keys expected.
struct Groups {
    places: SpillVec<Group>,
}

impl Groups {
    fn new(pool: &Pool, keys: usize) -> Result<Self, PoolError> {
        let mut places = SpillVec::new(pool);
        let empty = Group { key: 0, count: 0, sum: 0 };
        places.try_extend(std::iter::repeat_n(empty, 2 * keys))?;
        Ok(Self { places })
    }

    fn add(&self, key: u64, amount: u64) -> Result<(), PoolError> {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let mut place = hash as usize % self.places.len();
        while !self.places.update(place, |group| group.take(key, amount))? {
            place = (place + 1) % self.places.len();
        }
        Ok(())
    }
}

impl Group {
    /// Adds to the group if it has this key, or is empty.
    fn take(&mut self, key: u64, amount: u64) -> bool {
        let ours = self.count == 0 || self.key == key;
        if ours {
            *self = Self { key, count: self.count + 1, sum: self.sum + amount };
        }
        ours
    }
}

/// Row `n` of a made-up table: keys recur in an order that is bad for caches.
fn row(n: u64, keys: u64) -> (u64, u64) {
    (n.wrapping_mul(0x2545_f491_4f6c_dd1d) % keys, n % 100)
}

/// Groups `rows` rows of at most `keys` keys, and compares the totals with the expected ones.
///
/// # Errors
/// See [`PoolError`].
pub(crate) fn check(pool: &Pool, rows: u64, keys: u64) -> Result<(), PoolError> {
    let groups = Groups::new(pool, keys as usize)?;
    for (key, amount) in (0..rows).map(|n| row(n, keys)) {
        groups.add(key, amount)?;
    }
    let (mut count, mut sum, mut distinct) = (0, 0, 0);
    for group in &groups.places {
        let group = group?;
        count += group.count;
        sum += group.sum;
        distinct += u64::from(group.count > 0);
    }
    println!("{rows} rows in {distinct} groups; the amounts add up to {sum}");
    assert_eq!((count, sum), (rows, (0..rows).map(|n| n % 100).sum()));
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::builder().memory(Bytes(16 << 20)).swap("ram:256M".parse()?).build()?;
    check(&pool, 4_000_000, 1_000_000)?;
    let summary = pool.summary();
    println!("{} pages read, {} written", summary.pages_in, summary.pages_out);
    Ok(())
}
