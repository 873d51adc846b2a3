//! Published figures beside simulated ones, and whether they agree.
//!
//! Owns: the meaning of a mark. Not here: which figures have one (`experiments`).

use serde::Serialize;

/// A requirement on a simulated figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mark {
    /// The change in per cent is in a range.
    Change(f64, f64),
    /// Each side differs by at most this many per cent from the published one.
    Near(f64),
    /// Each side is in a range.
    Within((f64, f64), (f64, f64)),
    /// The side before is in a range.
    Before(f64, f64),
    /// The side before is in a range, the side after below a bound.
    Shares((f64, f64), f64),
    /// The side before is at least this many times the side after.
    TimesLess(f64),
}

/// One figure of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Its name.
    pub what: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Published without the mechanism, if any.
    pub published_before: Option<f64>,
    /// Published with it.
    pub published_after: Option<f64>,
    /// The published change, in words.
    pub claimed: &'static str,
    /// Simulated without it.
    pub before: f64,
    /// Simulated with it.
    pub after: f64,
    /// Its mark, in words; empty if none.
    pub mark: String,
    /// Whether the mark holds.
    pub holds: Option<bool>,
}

impl Figure {
    pub(crate) fn new(what: &'static str, unit: &'static str, before: f64, after: f64) -> Self {
        Self {
            what,
            unit,
            published_before: None,
            published_after: None,
            claimed: "",
            before,
            after,
            mark: String::new(),
            holds: None,
        }
    }

    pub(crate) fn published(self, before: Option<f64>, after: Option<f64>) -> Self {
        Self { published_before: before, published_after: after, ..self }
    }

    pub(crate) fn claimed(self, claimed: &'static str) -> Self {
        Self { claimed, ..self }
    }

    pub(crate) fn mark(self, mark: Mark) -> Self {
        let (words, holds) = (mark.words(), mark.holds(&self));
        Self { mark: words, holds: Some(holds), ..self }
    }

    /// Returns by how many per cent the side after is above the side before.
    pub fn change_percent(&self) -> f64 {
        100.0 * (self.after / self.before - 1.0)
    }
}

impl Mark {
    fn words(self) -> String {
        match self {
            Self::Change(from, to) => format!("{from:+} to {to:+} %"),
            Self::Near(percent) => format!("within {percent} %"),
            Self::Within(before, after) => {
                format!("{} to {} → {} to {}", before.0, before.1, after.0, after.1)
            }
            Self::Before(from, to) => format!("{from} to {to} before"),
            Self::Shares(before, after) => {
                format!("{} to {} → below {after}", before.0, before.1)
            }
            Self::TimesLess(times) => format!("{times} times less"),
        }
    }

    fn holds(self, figure: &Figure) -> bool {
        let Figure { before, after, .. } = *figure;
        let within = |value: f64, (from, to): (f64, f64)| (from..=to).contains(&value);
        let near = |value: f64, published: Option<f64>, percent: f64| {
            published.is_none_or(|published| (value / published - 1.0).abs() <= percent / 100.0)
        };
        match self {
            Self::Change(from, to) => within(figure.change_percent(), (from, to)),
            Self::Near(percent) => {
                near(before, figure.published_before, percent)
                    && near(after, figure.published_after, percent)
            }
            Self::Within(b, a) => within(before, b) && within(after, a),
            Self::Before(from, to) => within(before, (from, to)),
            Self::Shares(b, below) => within(before, b) && after < below,
            Self::TimesLess(times) => after * times <= before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(before: f64, after: f64, mark: Mark) -> bool {
        let figure = Figure::new("", "", before, after).published(Some(2.0), Some(3.0));
        figure.mark(mark).holds.unwrap()
    }

    #[test]
    fn marks_hold_within_their_ranges_and_not_outside() {
        for (before, after, mark, expected) in [
            (100.0, 130.0, Mark::Change(25.0, 50.0), true),
            (100.0, 120.0, Mark::Change(25.0, 50.0), false),
            (1.6, 3.6, Mark::Near(25.0), true),
            (1.4, 3.0, Mark::Near(25.0), false),
            (15.0, 4.0, Mark::Within((11.0, 19.0), (3.0, 6.0)), true),
            (15.0, 7.0, Mark::Within((11.0, 19.0), (3.0, 6.0)), false),
            (35.0, 99.0, Mark::Before(25.0, 45.0), true),
            (20.0, 0.9, Mark::Shares((15.0, 28.0), 1.0), true),
            (20.0, 1.0, Mark::Shares((15.0, 28.0), 1.0), false),
            (30.0, 3.0, Mark::TimesLess(10.0), true),
            (30.0, 3.1, Mark::TimesLess(10.0), false),
        ] {
            assert_eq!(holds(before, after, mark), expected, "{before} {after} {mark:?}");
        }
    }
}
