//! Where a run swaps to, as its user named it.
//!
//! Owns: what it was started with, and what was added.
//! Invariant: only what may be added is opened (`allowed`).
//! Not here: opening it (`overspill_run`).

use super::allowed::check_added;
use super::live::{Changed, refused};
use overspill::{SwapKind, SwapSpec, Tls};
use overspill_run::{AreaState, Front};
use std::cell::RefCell;
use std::path::PathBuf;

/// Where the run swaps to, as its user named it.
pub(super) struct Places {
    started_with: Vec<SwapSpec>,
    /// By the numbers of their areas; those that are gone too.
    all: RefCell<Vec<SwapSpec>>,
}

impl Places {
    pub(super) fn new(started_with: Vec<SwapSpec>) -> Self {
        let all = RefCell::new(started_with.clone());
        Self { started_with, all }
    }

    pub(super) fn add(&self, front: &Front, place: &str) -> Changed {
        match place.parse().map(|spec: SwapSpec| self.add_spec(front, spec)) {
            Ok(Ok(area)) => Changed::Added { device: area.name },
            Ok(Err(why)) => refused(&why),
            Err(error) => refused(&error),
        }
    }

    fn add_spec(&self, front: &Front, spec: SwapSpec) -> Result<AreaState, String> {
        let areas = front.state().map(|(areas, _)| areas).unwrap_or_default();
        let mut all = self.all.borrow_mut();
        let on = areas.iter().filter_map(|area| all.get(area.number));
        check_added(&spec, &self.started_with, on).map_err(|error| error.to_string())?;
        let area = front.add_swap(absolute(&spec)).map_err(|error| error.to_string())?;
        all.push(spec);
        Ok(area)
    }

    pub(super) fn remove(&self, front: &Front, name: &str) -> Changed {
        match front.remove_swap(name) {
            Ok(area) => Changed::Leaving { area: area.number },
            Err(error) => refused(&error),
        }
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
