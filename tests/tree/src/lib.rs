//! This tree as data: its packages and its source files.
//!
//! Owns: where they are, and how they are named.
//! Invariants: files of the product are named by their path below `crates`, all others by their
//! path below the root.
//! Not here: the rules, which are tests.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A source file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name.
    pub path: String,
    /// What it has.
    pub text: String,
}

/// The directory of this tree.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).expect("two directories down").to_owned()
}

/// All source files in Rust.
///
/// # Panics
/// One cannot be read, or there are far too few.
pub fn sources() -> Vec<Source> {
    let root = root();
    let paths =
        ["crates", "lab", "tests"].into_iter().flat_map(|part| rust_below(&root.join(part)));
    let read = |path: PathBuf| {
        let below = path.strip_prefix(&root).expect("it was found there");
        let name = below.strip_prefix("crates").unwrap_or(below).display().to_string();
        Source { path: name, text: std::fs::read_to_string(&path).expect("a source file") }
    };
    let found: Vec<Source> = paths.map(read).collect();
    assert!(found.len() > 500, "only {} source files found", found.len());
    found
}

/// All Rust files of a directory and those below it, in order.
pub fn rust_below(path: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    collect(path, &mut paths);
    paths.sort();
    paths
}

fn collect(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in path.read_dir().expect("a directory of this tree") {
            collect(&entry.expect("its entry").path(), found);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        found.push(path.to_owned());
    }
}

/// The workspace's packages, as cargo describes them.
///
/// # Panics
/// Cargo does not.
pub fn packages() -> Vec<Value> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = cargo.current_dir(root()).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}
