//! What may be added to a run that goes on.
//!
//! Owns: the comparison with the places that the run was started with. Whoever may ask a run is not
//! always whom its user would trust with its pages: root of another container is also root.
//! Invariants: what is added never makes pages readable that were not, and never lets them go to a
//! machine, or to a kind of place, to which the user did not let them go at the start.
//! Not here: who may ask ([`overspill_run::Answers`]).

use crate::error::Error;
use overspill::{SwapKind, SwapSpec, check_given_once};

/// Where pages of a place are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Memory,
    Disk,
    Server,
}

fn where_is(kind: &SwapKind) -> Where {
    match (kind.is_remote(), kind.is_in_memory()) {
        (true, _) => Where::Server,
        (_, true) => Where::Memory,
        _ => Where::Disk,
    }
}

/// The servers of a kind of place, and of another: all of these are among those.
fn are_among(kind: &SwapKind, known: &SwapKind) -> bool {
    match (kind, known) {
        (SwapKind::Nbd { server, .. }, SwapKind::Nbd { server: known, .. }) => server == known,
        (SwapKind::RedisCluster { nodes }, SwapKind::RedisCluster { nodes: known }) => {
            nodes.iter().all(|node| known.contains(node))
        }
        _ => false,
    }
}

/// True if both connect to their servers in the same way, and as the same user.
fn connects_as(spec: &SwapSpec, known: &SwapSpec) -> bool {
    let who = |spec: &SwapSpec| {
        (spec.tls.clone(), spec.cluster.user.clone(), spec.cluster.password_file.clone())
    };
    who(spec) == who(known)
}

/// Refuses a place that brings what none of the places that a run was started with had, or that it
/// swaps to already.
///
/// # Errors
/// [`Error::NotAllowed`], [`overspill::Error::GivenTwice`].
pub(super) fn check_added<'s>(
    spec: &'s SwapSpec,
    started_with: &[SwapSpec],
    on: impl Iterator<Item = &'s SwapSpec>,
) -> Result<(), Error> {
    check(spec, started_with)?;
    let specs: Vec<SwapSpec> = on.chain([spec]).cloned().collect();
    Ok(check_given_once(&specs)?)
}

/// Refuses a place that brings what none of the places `before` had.
///
/// # Errors
/// [`Error::NotAllowed`].
fn check(spec: &SwapSpec, before: &[SwapSpec]) -> Result<(), Error> {
    let refused = |reason| Error::NotAllowed { place: spec.kind.to_string(), reason };
    let is_in_memory = |spec: &SwapSpec| spec.places().all(SwapKind::is_in_memory);
    let is_open = |spec: &SwapSpec| is_in_memory(spec) && !spec.is_encrypted();
    let is_as_before = is_open(spec) && before.iter().any(is_open);
    if !(spec.is_encrypted() || is_as_before) {
        return Err(refused("pages would be readable there"));
    }
    for kind in spec.places() {
        let place = where_is(kind);
        let mut known = before.iter().flat_map(|spec| spec.places().map(move |kind| (spec, kind)));
        let is_known = known.any(|(known_spec, known)| match place {
            Where::Server => are_among(kind, known) && connects_as(spec, known_spec),
            _ => place == where_is(known),
        });
        if !is_known {
            return Err(refused(match place {
                Where::Memory => "it takes memory of this machine, and no place of the start did",
                Where::Disk => "it is on a disk, and no place of the start was",
                Where::Server => "its server, reached in this way, is none of the start",
            }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(place: &str, before: &[&str]) -> String {
        let spec = |text: &&str| text.parse::<SwapSpec>().unwrap();
        let before: Vec<_> = before.iter().map(spec).collect();
        check(&spec(&place), &before).map_or_else(|error| error.to_string(), |()| "ok".into())
    }

    #[test]
    fn more_of_what_there_was_may_be_added() {
        for (place, before) in [
            ("file:/b:1G", "file:/a"),
            ("block:/dev/b", "file:/a,encrypt=off"),
            ("ram:1G", "compressed:1G"),
            ("ram:1G,encrypt=on", "ram:1G"),
            ("nbd:a/x", "nbd:a/y"),
            ("nbd:a:1,tls=on", "nbd:a:1,tls=on"),
            ("redis+cluster:a", "redis+cluster:a,b"),
            ("nbd:a,mirror=file:/c", "nbd:a,mirror=file:/b"),
        ] {
            assert_eq!(outcome(place, &[before]), "ok", "{place} after {before}");
        }
        assert_eq!(outcome("ram:1G", &["file:/a", "ram:1M"]), "ok");
        let default = SwapSpec::from(SwapKind::Default);
        assert!(check(&"file:/b".parse().unwrap(), &[default]).is_ok());
    }

    #[test]
    fn what_is_readable_new_or_elsewhere_is_refused() {
        for (place, before, words) in [
            ("file:/b,encrypt=off", "file:/a,encrypt=off", "readable"),
            ("nbd:a,encrypt=off", "nbd:a,encrypt=off", "readable"),
            ("ram:1G", "ram:1G,encrypt=on", "readable"),
            ("ram:1G,encrypt=on", "file:/a", "takes memory"),
            ("file:/a", "ram:1G", "on a disk"),
            ("nbd:b", "nbd:a", "none of the start"),
            ("nbd:a:2", "nbd:a:1", "none of the start"),
            ("nbd:a", "nbd:a,tls=on", "none of the start"),
            ("nbd:a", "redis+cluster:a", "none of the start"),
            ("redis+cluster:a,c", "redis+cluster:a,b", "none of the start"),
            ("redis+cluster:a,user=b", "redis+cluster:a,user=a", "none of the start"),
            ("file:/b,mirror=nbd:b", "file:/a", "none of the start"),
        ] {
            let said = outcome(place, &[before]);
            assert!(said.contains(words), "{place} after {before}: {said}");
        }
    }
}
