//! `overspill doctor`: what works on this machine.
//!
//! Owns: the last finding, a run: whatever a probe does not foresee is told in the words of
//! `overspill run`, because it is one.
//! Not here: the probes and their messages, which `overspill run` uses for its refusals too.

use crate::args::DoctorArgs;
use crate::error::Error;
use overspill::doctor::{Finding, Health, examine};
use overspill_run::Ground;
use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Prints one line per finding; returns 1 if one of them makes runs impossible.
///
/// # Errors
/// [`Error::NoDirectory`], [`Error::Output`].
pub(crate) fn doctor(args: &DoctorArgs) -> Result<u8, Error> {
    let directory = args.directory.as_deref();
    if let Some(missing) = directory.filter(|directory| !directory.is_dir()) {
        return Err(Error::NoDirectory(missing.to_owned()));
    }
    let mut findings = examine(directory);
    findings.insert(1, keeper());
    findings.push(run(directory));
    io::stdout().write_all(table(&findings).as_bytes())?;
    Ok(findings.iter().any(|finding| finding.health == Health::Broken).into())
}

/// Whether programs can be paged from outside.
fn keeper() -> Finding {
    let (health, detail) = match Ground::find() {
        Ok(_) => {
            (Health::Good, "used: programs start untouched, and are paged from outside".into())
        }
        Err(lack) => (Health::Limited, format!("better, but {lack}")),
    };
    Finding { what: "way: keeper", health, detail }
}

/// Runs this program, which needs little, under a limit.
fn run(directory: Option<&Path>) -> Finding {
    let (health, detail) = match run_this(directory) {
        Ok(output) if output.status.success() && output.stderr.is_empty() => {
            (Health::Good, "a program has run in 16 MiB".to_owned())
        }
        Ok(output) => (Health::Broken, last_line(&output.stderr)),
        Err(error) => (Health::Broken, error.to_string()),
    };
    Finding { what: "a run", health, detail }
}

fn run_this(directory: Option<&Path>) -> io::Result<Output> {
    let this = env::current_exe()?;
    let mut command = Command::new(&this);
    command.args(["run", "--quiet", "--memory", "16M"]);
    if let Some(directory) = directory {
        let mut swap = OsString::from("file:");
        swap.push(directory);
        command.arg("--swap").arg(swap);
    }
    command.arg("--").arg(&this).arg("--version").stdin(Stdio::null()).output()
}

/// Returns what `overspill run` has said last, without its name.
fn last_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let line = said.lines().last().unwrap_or("it failed without a word");
    line.strip_prefix("overspill: ").unwrap_or(line).to_owned()
}

fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
    let line = |f: &Finding| format!("{:<7}  {:<width$}  {}\n", mark(f.health), f.what, f.detail);
    findings.iter().map(line).collect()
}

fn mark(health: Health) -> &'static str {
    match health {
        Health::Good => "ok",
        Health::Limited => "limited",
        Health::Broken => "no",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let finding = |what, health| Finding { what, health, detail: "detail".into() };
        let findings = [finding("memory", Health::Good), finding("io_uring", Health::Limited)];
        assert_eq!(table(&findings), "ok       memory    detail\nlimited  io_uring  detail\n");
    }
}
