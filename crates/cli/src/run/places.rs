//! Where a run swaps to, as its user named it.
//!
//! Owns: what it was started with, and what was added.
//! Invariant: only what may be added is opened (`allowed`).
//! Not here: opening it (`overspill_run`).

use super::allowed::check_added;
use super::live::{Changed, refused};
use super::signals::blocked;
use crate::error::Error;
use overspill::{SwapKind, SwapSpec, Tls};
use overspill_run::Front;
use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Instant;

/// Where the run swaps to, as its user named it.
pub(super) struct Places {
    started_with: Vec<SwapSpec>,
    /// By the numbers of their areas; those that are gone too.
    all: RefCell<Vec<SwapSpec>>,
    /// What was begun.
    change: RefCell<Option<Change>>,
}

/// A change of places.
enum Change {
    Adding(Box<SwapSpec>),
    Removing,
}

impl Places {
    pub(super) fn new(started_with: Vec<SwapSpec>) -> Self {
        let (all, change) = (RefCell::new(started_with.clone()), RefCell::new(None));
        Self { started_with, all, change }
    }

    /// Adds a place, as was asked at some moment; `None` until that is done.
    pub(super) fn add(
        &self,
        front: &mut Front,
        (place, asked): (&str, Instant),
    ) -> Option<Changed> {
        if self.change.borrow().is_none() {
            let spec: SwapSpec = match place.parse() {
                Ok(spec) => spec,
                Err(error) => return Some(refused(&error)),
            };
            let (areas, _) = front.state_since(asked)?;
            let on: Vec<usize> = areas.iter().map(|area| area.number).collect();
            if let Err(error) = self.check_added(&spec, &on) {
                return Some(refused(&error));
            }
            blocked(|| front.add_swap(absolute(&spec)));
            self.change.replace(Some(Change::Adding(spec.into())));
        }
        self.end(front)
    }

    fn check_added(&self, spec: &SwapSpec, on: &[usize]) -> Result<(), Error> {
        let all = self.all.borrow();
        let on = on.iter().filter_map(|number| all.get(*number));
        check_added(spec, &self.started_with, on)
    }

    /// Has a place left; `None` until that has begun.
    pub(super) fn remove(&self, front: &mut Front, name: &str) -> Option<Changed> {
        if self.change.borrow().is_none() {
            front.remove_swap(name);
            self.change.replace(Some(Change::Removing));
        }
        self.end(front)
    }

    /// What came of the change that was begun, if that is known.
    fn end(&self, front: &mut Front) -> Option<Changed> {
        let changed = front.take_changed()?;
        let change = self.change.take();
        Some(match (changed, change) {
            (Ok(area), Some(Change::Adding(spec))) => {
                self.all.borrow_mut().push(*spec);
                Changed::Added { device: area.name }
            }
            (Ok(area), _) => Changed::Leaving { area: area.number },
            (Err(error), _) => refused(&error),
        })
    }
}

/// The keeper has another working directory.
fn absolute(spec: &SwapSpec) -> SwapSpec {
    let mut spec = spec.clone();
    let places = [Some(&mut spec.kind), spec.mirror.as_mut()].into_iter().flatten();
    let paths = places.filter_map(|kind| match kind {
        SwapKind::File { path, .. } | SwapKind::Block { path } => Some(path),
        _ => None,
    });
    let authorities = spec.tls.as_mut().and_then(|tls| match tls {
        Tls::Directory(path) => Some(path),
        Tls::System => None,
    });
    let absolute = |path: &mut PathBuf| {
        // One that cannot be made absolute is refused where it is opened.
        *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
    };
    paths.chain(authorities).chain(spec.cluster.password_file.as_mut()).for_each(absolute);
    spec
}
