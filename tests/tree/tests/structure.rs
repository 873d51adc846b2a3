//! The project's rules, as tests: which crate may use which, and what every source file must be
//! like.
//!
//! Owns: the tables of these rules. ARCHITECTURE.md and CONTRIBUTING.md explain them.
//! Invariants: a rule that cannot be kept gets an exception here, with a reason, or is removed. The
//! lists of exceptions only shrink.
//! Not here: formatting and lints, which rustfmt and clippy check.

use overspill_tree::{Source, packages, root, sources};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::process::Command;

/// Which crates of the workspace a crate uses: exactly these. A line names only lines above it.
const USES: &[(&str, &[&str])] = &[
    ("overspill-base", &[]),
    ("overspill-calls", &[]),
    ("overspill-agent", &["overspill-calls"]),
    ("overspill-forks", &[]),
    ("overspill-wire", &[]),
    ("overspill-guest", &["overspill-agent", "overspill-base"]),
    ("overspill-area", &["overspill-base"]),
    ("overspill-device", &["overspill-base", "overspill-wire"]),
    ("overspill-terminal", &["overspill-base"]),
    ("overspill-remote", &["overspill-base", "overspill-device", "overspill-terminal"]),
    ("overspill-engine", &["overspill-area", "overspill-base", "overspill-device"]),
    (
        "overspill-keeper",
        &[
            "overspill-agent",
            "overspill-area",
            "overspill-base",
            "overspill-device",
            "overspill-engine",
            "overspill-guest",
            "overspill-wire",
        ],
    ),
    (
        "overspill-run",
        &[
            "overspill-agent",
            "overspill-base",
            "overspill-device",
            "overspill-guest",
            "overspill-keeper",
            "overspill-wire",
        ],
    ),
    ("overspill-space", &["overspill-base", "overspill-engine"]),
    (
        "overspill",
        &[
            "overspill-area",
            "overspill-base",
            "overspill-device",
            "overspill-engine",
            "overspill-space",
        ],
    ),
    ("overspill-c", &["overspill"]),
    ("overspill-python", &["overspill"]),
    ("overspill-report", &["overspill-base"]),
    ("overspill-cli", &["overspill", "overspill-report", "overspill-run", "overspill-terminal"]),
];

/// The same of the laboratory and of tests, which nothing of the product uses.
const USES_BESIDE: &[(&str, &[&str])] = &[
    ("overspill-vcpu", &[]),
    ("overspill-base-sim", &["overspill-vcpu"]),
    ("overspill-area-sim", &["overspill-base-sim"]),
    ("overspill-device-sim", &["overspill-base-sim", "overspill-wire"]),
    ("overspill-engine-sim", &["overspill-area-sim", "overspill-base-sim", "overspill-device-sim"]),
    (
        "overspill-sim",
        &[
            "overspill-area-sim",
            "overspill-base-sim",
            "overspill-device-sim",
            "overspill-engine-sim",
            "overspill-vcpu",
        ],
    ),
    (
        "overspill-bench",
        &[
            "overspill",
            "overspill-area",
            "overspill-base",
            "overspill-device",
            "overspill-engine",
            "overspill-report",
            "overspill-sim",
        ],
    ),
    ("overspill-lab", &["overspill", "overspill-bench", "overspill-sim", "overspill-terminal"]),
    ("overspill-programs", &["overspill", "overspill-calls"]),
    ("overspill-kernel-rules", &[]),
    ("overspill-mutate", &[]),
    ("overspill-tree", &[]),
];

/// Source files that may say `unsafe`. Tests may too, except in `area`.
const UNSAFE: &[&str] = &[
    "agent/gate/calls.rs",
    "agent/gate/children.rs",
    "agent/gate/place.rs",
    "agent/gate/frames.rs",
    "agent/gate/holds.rs",
    "agent/gate/kernel.rs",
    "agent/gate/letters.rs",
    "agent/gate/main.rs",
    "agent/gate/memory.rs",
    "agent/gate/signals.rs",
    "agent/gate/slots.rs",
    "agent/gate/transfers.rs",
    "agent/payload/calls.rs",
    "agent/payload/held.rs",
    "agent/payload/main.rs",
    "agent/payload/raw.rs",
    "agent/payload/start.rs",
    "base/src/secret.rs",
    "base/src/shared.rs",
    "c/src/fail.rs",
    "c/src/limit.rs",
    "c/src/pool.rs",
    "c/src/region.rs",
    "cli/src/run/process.rs",
    "cli/src/run/signals.rs",
    "device/src/buffers.rs",
    "device/src/file/check.rs",
    "device/src/file/discard.rs",
    "device/src/file/positioned.rs",
    "device/src/file/transfer.rs",
    "device/src/file/uring.rs",
    "device/src/large_pages.rs",
    "device/src/served/memory.rs",
    "device/src/testing.rs",
    "engine/src/bounce.rs",
    "engine/src/memory.rs",
    "forks/src/main.rs",
    "guest/src/kernel.rs",
    "guest/src/pagemap.rs",
    "guest/src/peer.rs",
    "guest/src/pidfd.rs",
    "guest/src/places.rs",
    "guest/src/userfault.rs",
    "keeper/src/priority.rs",
    "keeper/src/process/alone.rs",
    "keeper/src/process/confined/tests.rs",
    "keeper/src/space/move_out.rs",
    "overspill/src/pager.rs",
    "overspill/src/pool/guard.rs",
    "overspill/src/region.rs",
    "python/src/exports.rs",
    "python/src/fork.rs",
    "python/src/numpy.rs",
    "python/src/pool.rs",
    "python/src/region.rs",
    "remote/src/main.rs",
    "remote/src/mirror/tests.rs",
    "remote/src/nbd/area.rs",
    "remote/src/nbd/tests.rs",
    "remote/src/redis/tests.rs",
    "run/src/ground.rs",
    "run/src/same.rs",
    "space/src/guards.rs",
    "space/src/in_place.rs",
    "space/src/mapping.rs",
    "space/src/moving.rs",
    "space/src/source.rs",
    "space/src/space.rs",
    "space/src/traps.rs",
    "space/src/uffd.rs",
    "lab/bench/src/replay.rs",
    "lab/bench/src/touch/memory.rs",
    "lab/sim/src/space.rs",
    "lab/sim/src/stamp.rs",
    "lab/vcpu/src/core.rs",
    "lab/vcpu/src/machine.rs",
];

/// Files that may be longer than [`FILE_LINES_MAX`]. Should be empty.
const LONG_FILES: &[&str] = &[];
/// Functions, as `file: name`, that may be longer than [`FUNCTION_LINES_MAX`]. Should be empty.
const LONG_FUNCTIONS: &[&str] = &[];

/// Columns of a comment line: as many as rustfmt gives to code.
const COMMENT_COLUMNS_MAX: usize = 100;

/// Lines of a file before its own test module.
const FILE_LINES_MAX: usize = 500;
/// Lines of a function, from its `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

/// Words left behind by accident. Split in halves, so that they are not found here.
const LEFTOVERS: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("db", "g!("), concat!("todo", "!(")];

fn assert_none<T: Display>(rule: &str, offenders: impl IntoIterator<Item = T>) {
    let list: Vec<String> = offenders.into_iter().map(|offender| offender.to_string()).collect();
    assert!(list.is_empty(), "{rule}:\n  {}", list.join("\n  "));
}

/// What any crate's tests may use.
const FOR_ALL_TESTS: &str = "overspill-mutate";

/// Returns the crates of the workspace that a package depends on, in any role.
fn used_by(package: &Value) -> BTreeSet<&str> {
    let dependencies = package["dependencies"].as_array().unwrap();
    let inside = dependencies.iter().filter(|dependency| dependency["path"].is_string());
    let inside = inside
        .filter(|dependency| dependency["name"] != FOR_ALL_TESTS || dependency["kind"] != "dev");
    inside.map(|dependency| dependency["name"].as_str().unwrap()).collect()
}

fn all_uses() -> impl Iterator<Item = &'static (&'static str, &'static [&'static str])> {
    USES.iter().chain(USES_BESIDE)
}

#[test]
fn crates_use_each_other_as_the_table_says() {
    let packages = packages();
    assert_eq!(packages.len(), all_uses().count(), "the tables name every crate");
    for package in &packages {
        let name = package["name"].as_str().unwrap();
        let row = all_uses().find(|(user, _)| *user == name);
        let (_, used) = row.unwrap_or_else(|| panic!("{name} is not in the table"));
        assert_eq!(used_by(package), used.iter().copied().collect(), "what {name} uses");
    }
}

/// What virtual CPUs run is what the product runs: no source of its own, the same dependencies.
#[test]
fn twins_have_the_sources_and_dependencies_of_what_they_stand_for() {
    let packages = packages();
    let find = |name: &str| packages.iter().find(|package| package["name"] == name).unwrap();
    let outside = |package: &Value| -> BTreeSet<String> {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let from_registry = dependencies.filter(|d| d["source"].is_string() && d["kind"].is_null());
        let always = from_registry.filter(|d| d["target"].is_null());
        always.map(|d| format!("{} {}", d["name"], d["req"])).collect()
    };
    let library = |package: &Value| {
        let targets = package["targets"].as_array().unwrap();
        let library = targets.iter().find(|t| t["kind"][0] == "lib").unwrap();
        std::fs::canonicalize(library["src_path"].as_str().unwrap()).unwrap()
    };
    for name in ["base", "area", "device", "engine"] {
        let (own, twin) = (format!("overspill-{name}"), format!("overspill-{name}-sim"));
        assert_eq!(library(find(&own)), library(find(&twin)), "{twin}");
        assert_eq!(outside(find(&own)), outside(find(&twin)), "{twin}");
    }
}

#[test]
fn nothing_points_up() {
    for (line, (user, used)) in all_uses().enumerate() {
        let below: Vec<&str> = all_uses().take(line).map(|(name, _)| *name).collect();
        assert_none(
            &format!("{user} uses what is not below it"),
            used.iter().filter(|name| !below.contains(name)),
        );
    }
}

/// A run needs no plotters but its own, no simulator, no workloads; and no client of a server.
#[test]
fn the_program_links_neither_the_laboratory_nor_the_network() {
    let linked = |package: &str| {
        let mut tree = Command::new(env!("CARGO"));
        tree.args(["tree", "--offline", "-e", "normal", "--prefix", "none", "-f", "{lib}", "-p"]);
        let output = tree.arg(package).current_dir(root()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let names = String::from_utf8(output.stdout).unwrap();
        names.lines().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let absent = ["overspill_bench", "overspill_sim", "overspill_vcpu", "overspill_remote"];
    let absent: Vec<&str> = absent.into_iter().chain(["redis", "rustls"]).collect();
    for package in ["overspill-cli", "overspill-c"] {
        let linked = linked(package);
        assert!(linked.contains("overspill_engine"), "{linked:?}");
        assert_none(package, absent.iter().filter(|name| linked.contains(**name)));
    }
    // The same words find what is there.
    assert!(absent.iter().any(|name| linked("overspill-remote").contains(*name)));
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    let manifests = packages().into_iter().map(|package| {
        let path = package["manifest_path"].as_str().unwrap().to_owned();
        (std::fs::read_to_string(&path).unwrap(), path)
    });
    let without = manifests.filter(|(text, _)| !text.contains("[lints]\nworkspace = true"));
    assert_none("manifests without `[lints] workspace = true`", without.map(|(_, path)| path));
}

#[test]
fn every_file_says_what_it_is() {
    let silent = sources().into_iter().filter(|source| !source.text.starts_with("//!"));
    assert_none("files that do not start with `//!`", silent.map(|source| source.path));
}

#[test]
fn unsafe_is_only_where_it_is_listed() {
    let sources = sources();
    let saying: BTreeSet<&str> = sources
        .iter()
        .filter(|source| says_unsafe(&source.text))
        .map(|source| source.path.as_str())
        .collect();
    let unlisted = saying
        .iter()
        .filter(|path| path.starts_with("area/") || !is_test(path))
        .filter(|path| !UNSAFE.contains(path));
    assert_none("files that say `unsafe` and are not listed", unlisted);
    let idle = UNSAFE.iter().filter(|path| !saying.contains(*path));
    assert_none("files that are listed and do not say `unsafe`", idle);

    let area = sources.iter().find(|source| source.path == "area/src/lib.rs").unwrap();
    assert!(area.text.contains("#![forbid(unsafe_code)]"));
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.starts_with("tests/")
}

/// Returns true if a line other than a comment has the word.
fn says_unsafe(text: &str) -> bool {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(words).any(|word| word == concat!("un", "safe"))
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

#[test]
fn nothing_is_left_behind() {
    let sources = sources();
    let left = sources.iter().flat_map(|source| {
        let found = LEFTOVERS.iter().filter(|word| source.text.contains(**word));
        found.map(|word| format!("{}: {word}", source.path))
    });
    assert_none("words to be removed", left);
}

#[test]
fn comments_are_as_wide_as_code() {
    let long = sources().into_iter().flat_map(|Source { path, text }| {
        let is_long = |line: &str| {
            line.trim_start().starts_with("//") && line.chars().count() > COMMENT_COLUMNS_MAX
        };
        let lines = text.lines().zip(1..).filter(|(line, _)| is_long(line));
        lines.map(|(_, number)| format!("{path}:{number}")).collect::<Vec<_>>()
    });
    assert_none("comment lines that are too long", long);
}

/// Pages that `scripts/book.sh` makes of documents beside `docs`.
const PAGES_OF_THE_BOOK: [&str; 6] = [
    "introduction.md",
    "architecture.md",
    "changelog.md",
    "contributing.md",
    "security.md",
    "packaging.md",
];

#[test]
fn links_between_documents_lead_somewhere() {
    let root = root();
    let folders = ["", "docs", "docs/guide", "packaging"].map(|folder| root.join(folder));
    let pages = folders.into_iter().flat_map(|folder| {
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|end| end == "md")).collect::<Vec<_>>()
    });
    let broken = pages.flat_map(|page| {
        let text = std::fs::read_to_string(&page).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        let missing = targets.filter(|target| {
            let in_book = page.ends_with("SUMMARY.md") && PAGES_OF_THE_BOOK.contains(target);
            let elsewhere = target.contains("://") || target.is_empty() || in_book;
            !elsewhere && !page.with_file_name(target).exists()
        });
        missing.map(|target| format!("{}: {target}", page.display())).collect::<Vec<_>>()
    });
    assert_none("links that lead nowhere", broken);
}

#[test]
fn files_are_short() {
    let too_long = sources().into_iter().filter_map(|Source { path, text }| {
        let lines = lines_before_tests(&text);
        let excused = LONG_FILES.contains(&path.as_str());
        (lines > FILE_LINES_MAX && !excused).then(|| format!("{path}: {lines} lines"))
    });
    assert_none("files that are too long", too_long);
}

fn lines_before_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let is_test_module = |pair: &[&str]| {
        pair[0].starts_with("#[cfg(") && pair[0].contains("test") && pair[1].ends_with("{")
    };
    lines.windows(2).position(is_test_module).unwrap_or(lines.len())
}

#[test]
fn functions_are_short() {
    let sources = sources();
    let too_long = sources.iter().flat_map(|source| {
        let long = functions(&source.text).filter(|(_, lines)| *lines > FUNCTION_LINES_MAX);
        long.map(|(name, lines)| (format!("{}: {name}", source.path), lines))
    });
    let unexcused = too_long.filter(|(place, _)| !LONG_FUNCTIONS.contains(&place.as_str()));
    let message = |(place, lines)| format!("{place}: {lines} lines");
    assert_none("functions that are too long", unexcused.map(message));
}

/// Returns the functions of formatted code with their lines. A function ends with the first closing
/// brace indented like its first line; without a body, with the parenthesis there.
fn functions(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    (0..lines.len()).filter_map(move |first| {
        let name = function_name(lines[first])?;
        let indent = &lines[first][..lines[first].len() - lines[first].trim_start().len()];
        let closes = |line: &str| {
            let rest = line.strip_prefix(indent).unwrap_or_default();
            rest == "}" || rest.starts_with(')') && rest.ends_with(';')
        };
        let has_no_body = |line: &str| line.ends_with(';') || line.ends_with('}');
        if has_no_body(lines[first]) {
            return Some((name, 1));
        }
        let length = lines[first..].iter().position(|line| closes(line)).unwrap_or(0);
        Some((name, length + 1))
    })
}

fn function_name(line: &str) -> Option<&str> {
    let mut words = line.trim_start().split(' ');
    let qualifiers = ["const", "async", concat!("un", "safe"), "extern", "\"C\""];
    let function = words.find(|word| !word.starts_with("pub") && !qualifiers.contains(word))?;
    let rest = (function == "fn").then(|| words.next())??;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[test]
fn the_line_counter_counts() {
    let text = "impl X {\n    fn a(&self) -> u8 {\n        1\n    }\n\n    pub(crate) fn b() {}\n}\n\
                pub unsafe extern \"C\" fn c(\n    x: u8,\n) {\n    if x {\n    }\n}\n";
    assert_eq!(functions(text).collect::<Vec<_>>(), [("a", 3), ("b", 1), ("c", 6)]);
    assert_eq!(lines_before_tests("a\nb\n#[cfg(test)]\nmod tests {\n}\n"), 2);
    assert_eq!(lines_before_tests("#[cfg(test)]\nmod tests;\nb\n"), 3);
    assert!(says_unsafe("a(); unsafe { b() }") && !says_unsafe("// unsafe\nforbid(unsafe_code)"));
}
