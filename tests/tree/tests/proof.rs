//! docs/invariants.md and tests/mutants against the sources: what they name must exist.
//!
//! Not here: whether the mutants are killed (`make mutants`, which builds each of them).

use overspill_tree::root;
use std::path::{Path, PathBuf};
use std::process::Command;

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(root().join(&path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

/// Returns the ``file: function`` pairs in backquotes.
fn tests_named(text: &str) -> Vec<(&str, &str)> {
    text.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.split_once(".rs: ")).collect()
}

#[test]
fn every_test_that_the_table_names_exists() {
    let table = read("docs/invariants.md");
    let named = tests_named(&table);
    assert!(named.len() > 50, "only {} tests named", named.len());
    for (file, test) in named {
        let below = if file.starts_with("tests/") { "" } else { "crates/" };
        let source = read(format!("{below}{file}.rs"));
        let function = format!("fn {test}(");
        let at = source.find(&function);
        let at = at.unwrap_or_else(|| panic!("{file}.rs has no test called {test}"));
        // A property's attribute stands before its comment, a test's right before it.
        assert!(source[..at].contains("#[test]"), "{file}.rs: {test} is no test");
    }
}

#[test]
fn every_invariant_has_a_row() {
    let table = read("docs/invariants.md");
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| E")).collect();
    assert_eq!(rows.len(), 45);
    for (number, row) in (1..).zip(rows) {
        assert!(row.starts_with(&format!("| E{number} | ")), "row {number}: {row}");
        assert_eq!(row.matches(" | ").count(), 2, "row {number} has three columns");
    }
}

fn mutants() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("tests/mutants")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "patch")).collect()
}

/// A mutant that does not apply tests nothing: a change of its code must update it.
#[test]
fn every_mutant_applies_and_says_what_kills_it() {
    if Command::new("git").arg("--version").output().is_err() {
        println!("skipped: git, which applies patches, is not installed");
        return;
    }
    assert!(mutants().len() >= 30);
    for mutant in mutants() {
        let head = read(&mutant);
        assert!(head.starts_with("Breaks: ") && head.contains("\nTest: "), "{}", mutant.display());
        let applied = Command::new("git")
            .args(["apply", "--check"])
            .arg(&mutant)
            .current_dir(root())
            .output()
            .unwrap();
        let why = String::from_utf8_lossy(&applied.stderr);
        assert!(applied.status.success(), "{} does not apply: {why}", mutant.display());
    }
}
