//! Input for tests: seeds, and for parsers samples with a few bytes changed, which get further than
//! random bytes do.
//!
//! Owns: which seeds a test plays ([`seeds`]), and what is changed in a sample. A fuzz target is a
//! test with `bolero::check!()`: under `cargo test` some thousand inputs by chance and those of its
//! corpus, with `cargo bolero` guided by coverage.

use bolero::TypeGenerator;
use std::ops::Range;

/// Returns the seeds to run: from the one in `OVERSPILL_SEED` on as many as `OVERSPILL_SEEDS` says,
/// or that one alone; without it the first `OVERSPILL_SEEDS`, by default `usual`.
///
/// # Panics
/// If either is set and no number.
pub fn seeds(usual: u64) -> Range<u64> {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
    };
    match (number("OVERSPILL_SEED"), number("OVERSPILL_SEEDS")) {
        (Some(seed), count) => seed..seed + count.unwrap_or(1),
        (None, count) => 0..count.unwrap_or(usual),
    }
}

/// What is done to which sample.
#[derive(Clone, Debug, TypeGenerator)]
pub struct Script {
    sample: u8,
    changes: Vec<Change>,
}

#[derive(Clone, Debug, TypeGenerator)]
enum Change {
    Put {
        at: u16,
        byte: u8,
    },
    Insert {
        at: u16,
        byte: u8,
    },
    Remove {
        at: u16,
        bytes: u8,
    },
    Repeat {
        at: u16,
        bytes: u8,
    },
    Cut {
        at: u16,
    },
    /// A number where one may be, as large as it can be.
    Large {
        at: u16,
        shift: u8,
    },
}

impl Script {
    /// The sample that is meant, changed.
    ///
    /// # Panics
    /// There is no sample.
    pub fn apply(&self, samples: &[&[u8]]) -> Vec<u8> {
        let mut bytes = samples[usize::from(self.sample) % samples.len()].to_vec();
        self.changes.iter().for_each(|change| change.apply(&mut bytes));
        bytes
    }

    /// As [`apply`](Self::apply), of a text; what is none any more is made one.
    ///
    /// # Panics
    /// As [`apply`](Self::apply).
    pub fn text(&self, samples: &[&str]) -> String {
        let samples: Vec<&[u8]> = samples.iter().map(|sample| sample.as_bytes()).collect();
        String::from_utf8_lossy(&self.apply(&samples)).into_owned()
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let place = |at: u16| usize::from(at) % (bytes.len() + 1);
        match *self {
            Self::Put { at, byte } => {
                let at = place(at);
                bytes.splice(at..(at + 1).min(bytes.len()), [byte]);
            }
            Self::Insert { at, byte } => bytes.insert(place(at), byte),
            Self::Remove { at, bytes: count } => {
                let at = place(at);
                bytes.drain(at..(at + usize::from(count)).min(bytes.len()));
            }
            Self::Repeat { at, bytes: count } => {
                let at = place(at);
                let part = bytes[at..(at + usize::from(count)).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            Self::Cut { at } => bytes.truncate(place(at)),
            Self::Large { at, shift } => {
                let at = place(at);
                let number = (u64::MAX >> (shift % 64)).to_string();
                bytes.splice(at..at, number.into_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_changes_its_sample() {
        let changes = vec![Change::Put { at: 0, byte: b'x' }, Change::Cut { at: 2 }];
        let script = Script { sample: 3, changes };
        assert_eq!(script.text(&["none", "abc"]), "xb");
    }
}
