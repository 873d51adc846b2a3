//! The examples in C and C++, built as a user would: installed, found by pkg-config, linked with
//! the shared and with the static library.
//!
//! Needs the release build, which `make build` makes. A skipped test prints the reason.

use std::path::{Path, PathBuf};
use std::process::Command;

struct Installed {
    prefix: tempfile::TempDir,
}

impl Installed {
    /// None, printing the reason, if something is missing here.
    fn new() -> Option<Self> {
        for tool in ["cc", "c++", "pkg-config"] {
            if Command::new(tool).arg("--version").output().is_err() {
                println!("skipped: there is no {tool}");
                return None;
            }
        }
        if !root().join("target/release/liboverspill.so").is_file() {
            println!("skipped: there is no release build: `make build`");
            return None;
        }
        let prefix = tempfile::tempdir().unwrap();
        let script = root().join("scripts/install.sh");
        run(Command::new(script).arg(prefix.path()));
        Some(Self { prefix })
    }

    fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let path = self.prefix.path().join("lib/pkgconfig");
        let mut command = Command::new("pkg-config");
        let output = run(command.env("PKG_CONFIG_PATH", path).args(arguments).arg("overspill"));
        output.split_whitespace().map(str::to_owned).collect()
    }

    /// Builds a program with every warning an error, runs it, and returns what it says.
    fn run(&self, compiler: &str, options: &[&str], source: &str, linked: &[String]) -> String {
        let program = self.prefix.path().join("program");
        let source = root().join("crates/c").join(source);
        let mut command = Command::new(compiler);
        command.args(["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).args(options);
        run(command.arg(source).args(linked).arg("-o").arg(&program));
        run(Command::new(&program).env("LD_LIBRARY_PATH", self.lib()))
    }

    fn run_example(&self, compiler: &str, options: &[&str], example: &str, linked: &[String]) {
        let said = self.run(compiler, options, &format!("examples/{example}"), linked);
        assert!(said.contains("pages out, "), "{example} says: {said}");
    }

    fn lib(&self) -> PathBuf {
        self.prefix.path().join("lib")
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (said, error) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}: {error}", output.status);
    String::from_utf8(said.clone()).unwrap()
}

const EXAMPLES: [(&str, &str, &str); 3] = [
    ("cc", "-std=c11", "sort.c"),
    ("cc", "-std=c11", "pages.c"),
    ("c++", "-std=c++17", "containers.cpp"),
];

#[test]
fn examples_build_and_run_with_the_shared_library() {
    let Some(installed) = Installed::new() else { return };
    let linked = installed.pkg_config(&["--cflags", "--libs"]);
    for (compiler, standard, example) in EXAMPLES {
        installed.run_example(compiler, &[standard], example, &linked);
    }
}

#[test]
fn examples_build_and_run_with_the_static_library() {
    let Some(installed) = Installed::new() else { return };
    std::fs::remove_file(installed.lib().join("liboverspill.so")).unwrap();
    let linked = installed.pkg_config(&["--cflags", "--libs", "--static"]);
    for (compiler, standard, example) in EXAMPLES {
        installed.run_example(compiler, &[standard], example, &linked);
    }
}

/// C takes any number where an enum is meant; one that is none must not become one.
#[test]
fn numbers_of_no_enum_are_refused() {
    let Some(installed) = Installed::new() else { return };
    let linked = installed.pkg_config(&["--cflags", "--libs"]);
    assert_eq!(installed.run("cc", &["-std=c11"], "tests/numbers.c", &linked), "ok\n");
}

/// Everything that the header declares is there, and nothing else.
#[test]
fn the_library_exports_what_the_header_declares() {
    let Some(installed) = Installed::new() else { return };
    let header = std::fs::read_to_string(root().join("crates/c/include/overspill.h")).unwrap();
    let output = run(Command::new("nm")
        .args(["-D", "--defined-only", "--format=just-symbols"])
        .arg(installed.lib().join("liboverspill.so")));
    let mut exported: Vec<&str> = output.lines().collect();
    let mut declared: Vec<&str> = header.lines().filter_map(declared_function).collect();
    exported.sort_unstable();
    declared.sort_unstable();
    declared.dedup();
    assert!(declared.len() > 20, "{declared:?}");
    assert_eq!(exported, declared);
}

/// The function that a line declares, if any.
fn declared_function(line: &str) -> Option<&str> {
    let (before, _) = line.split_once('(')?;
    let name = before.rsplit([' ', '*']).next()?;
    (!line.starts_with("//") && name.starts_with("overspill_")).then_some(name)
}
