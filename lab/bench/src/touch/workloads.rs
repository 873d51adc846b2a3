//! The workloads by name.
//!
//! Owns: the table.
//! Invariants: every name on the command line, in a report and in the documents is in it.

use super::Habits;
use super::content::{Content, Stamp, WORDS};
use super::pattern::Pattern;
use crate::error::{BenchError, within};

/// What is done to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// One word is read, or one is written.
    Word,
    /// Every byte is read.
    Page,
    /// Every byte is read and a word written.
    ReadModify,
}

/// A workload with all its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    pub(super) pattern: Pattern,
    pub(super) unit: Unit,
    pub(super) reads_percent: u8,
    pub(super) stamp: Stamp,
}

struct Known {
    name: &'static str,
    about: &'static str,
    unit: Unit,
    /// The pattern over so many pages, for a shape if one is given.
    pattern: fn(usize, Option<f64>) -> Pattern,
    content: Option<Content>,
}

const IN_ORDER: fn(usize, Option<f64>) -> Pattern = |_, _| Pattern::Linear { stride: 1 };
const UNIFORM: fn(usize, Option<f64>) -> Pattern = |_, _| Pattern::Uniform;

const TABLE: [Known; 11] = [
    Known {
        name: "uniform",
        about: "one word of a random page",
        unit: Unit::Word,
        pattern: UNIFORM,
        content: None,
    },
    Known {
        name: "normal",
        about: "one word of a page around the middle; the shape is the deviation in pages",
        unit: Unit::Word,
        pattern: |pages, shape| Pattern::Normal { pages: shape.unwrap_or(pages as f64 / 6.0) },
        content: None,
    },
    Known {
        name: "linear",
        about: "one word of each page in turn; the shape is the stride in pages",
        unit: Unit::Word,
        pattern: |_, shape| Pattern::Linear { stride: shape.map_or(1, |pages| pages as usize) },
        content: None,
    },
    Known {
        name: "strided",
        about: "one word of each 16th page, then of those after them",
        unit: Unit::Word,
        pattern: |_, shape| Pattern::Linear { stride: shape.map_or(16, |pages| pages as usize) },
        content: None,
    },
    Known {
        name: "pareto",
        about: "one word, four fifths in a fifth of the pages; the shape is alpha",
        unit: Unit::Word,
        pattern: |_, shape| Pattern::Pareto { alpha: shape.unwrap_or(1.161) },
        content: None,
    },
    Known {
        name: "zipf",
        about: "one word, by a Zipf law over scattered pages; the shape is its exponent",
        unit: Unit::Word,
        pattern: |_, shape| Pattern::Zipf { exponent: shape.unwrap_or(0.99) },
        content: None,
    },
    Known {
        name: "scan",
        about: "one word, 7 of 8 in an eighth of the pages, the others go through the rest in order",
        unit: Unit::Word,
        pattern: |_, _| Pattern::HotScan,
        content: None,
    },
    Known {
        name: "read",
        about: "every byte of each page in turn",
        unit: Unit::Page,
        pattern: IN_ORDER,
        content: None,
    },
    Known {
        name: "modify",
        about: "every byte of each page in turn, and a word is written",
        unit: Unit::ReadModify,
        pattern: IN_ORDER,
        content: None,
    },
    Known {
        name: "zero",
        about: "as uniform, but all pages are zeros",
        unit: Unit::Word,
        pattern: UNIFORM,
        content: Some(Content::Zero),
    },
    Known {
        name: "incompressible",
        about: "as uniform, but all pages are noise",
        unit: Unit::Word,
        pattern: UNIFORM,
        content: Some(Content::Incompressible),
    },
];

/// Name and description of every workload.
pub fn workload_names() -> Vec<(&'static str, &'static str)> {
    TABLE.iter().map(|known| (known.name, known.about)).collect()
}

impl Workload {
    /// The workload `name` of `habits` over `pages` for each thread.
    ///
    /// # Errors
    /// [`BenchError::Unknown`], [`BenchError::OutOfRange`].
    pub(super) fn named(name: &str, habits: &Habits, pages: usize) -> Result<Self, BenchError> {
        let known = TABLE.iter().find(|known| known.name == name).ok_or_else(|| {
            BenchError::unknown("workload", name, TABLE.iter().map(|known| known.name))
        })?;
        within("--ratio", habits.ratio, 0..=100)?;
        if let Some(offset) = habits.offset {
            within("--offset", offset, 1..=WORDS - 1)?;
        }
        let pattern = (known.pattern)(pages, habits.shape);
        check(pattern)?;
        Ok(Self {
            pattern,
            unit: known.unit,
            reads_percent: habits.ratio,
            stamp: Stamp {
                content: known.content.unwrap_or(habits.content),
                offset: habits.offset,
            },
        })
    }
}

/// Refuses shapes that a pattern cannot have.
fn check(pattern: Pattern) -> Result<(), BenchError> {
    match pattern {
        Pattern::Uniform | Pattern::HotScan => Ok(()),
        Pattern::Normal { pages } => within("--shape", pages, 1.0..=1e9),
        Pattern::Linear { stride } => within("--shape", stride, 1..=1 << 30),
        Pattern::Pareto { alpha } => within("--shape", alpha, 0.01..=100.0),
        Pattern::Zipf { exponent } => within("--shape", exponent, 0.0..=0.999),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::touch::tests::HABITS;

    fn refusal(name: &str, habits: &Habits) -> String {
        Workload::named(name, habits, 100).unwrap_err().to_string()
    }

    #[test]
    fn every_name_makes_a_workload() {
        for (name, _) in workload_names() {
            Workload::named(name, &HABITS, 100).unwrap();
        }
        let strided = Workload::named("strided", &HABITS, 100).unwrap();
        assert_eq!(strided.pattern, Pattern::Linear { stride: 16 });
        let zero = Workload::named("zero", &HABITS, 100).unwrap();
        assert_eq!(zero.stamp.content, Content::Zero);
    }

    #[test]
    fn what_cannot_be_is_refused_in_a_line() {
        let shape = |shape| Habits { shape: Some(shape), ..HABITS };
        let table = [
            ("unifrom", HABITS, "no workload is called `unifrom`; there are uniform, normal"),
            ("uniform", Habits { ratio: 101, ..HABITS }, "bad --ratio 101: it must be 0 to 100"),
            (
                "uniform",
                Habits { offset: Some(0), ..HABITS },
                "bad --offset 0: it must be 1 to 511",
            ),
            ("linear", shape(0.5), "bad --shape 0: it must be 1 to"),
            ("zipf", shape(1.0), "bad --shape 1: it must be 0 to 0.999"),
            ("pareto", shape(f64::NAN), "bad --shape NaN: it must be"),
        ];
        for (name, habits, line) in table {
            let refusal = refusal(name, &habits);
            assert!(refusal.starts_with(line) && !refusal.contains('\n'), "{refusal}");
        }
    }
}
