//! `overspill doctor`: what works on this machine.
//!
//! Owns: the last findings, a run and an attachment: whatever a probe does not foresee is told in
//! the words of `overspill run` and `overspill attach`, because it is one.
//! Invariant: nothing but this executable is run: an image may have no other.
//! Not here: the probes and their messages, which `overspill run` uses for its refusals too.

use crate::args::{DoctorArgs, Patient};
use crate::error::Error;
use crate::installed::{FORKS, program};
use overspill::doctor::{Finding, Health, examine};
use overspill_run::{Barrier, Ground, Way};
use serde_json::Value;
use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Prints one line per finding; returns 1 if one of them makes runs impossible.
///
/// # Errors
/// [`Error::NoDirectory`], [`Error::Output`].
pub(crate) fn doctor(args: &DoctorArgs) -> Result<u8, Error> {
    if let Some(patient) = args.patient {
        return Ok(be(patient));
    }
    let directory = args.directory.as_deref();
    if let Some(missing) = directory.filter(|directory| !directory.is_dir()) {
        return Err(Error::NoDirectory(missing.to_owned()));
    }
    let mut findings = examine(directory);
    findings.splice(1..1, ways(directory));
    let (health, detail) = run(directory, None, "a program that needs 32 MiB has run in 16 MiB");
    findings.extend([Finding { what: "a run", health, detail }, attach()]);
    io::stdout().write_all(table(&findings).as_bytes())?;
    Ok(findings.iter().any(|finding| finding.health == Health::Broken).into())
}

/// The ways to notice touches, each with what it lacks; the first that lacks nothing is used.
fn ways(directory: Option<&Path>) -> Vec<Finding> {
    let find = |way| -> Result<Ground, Error> { Ok(Ground::find(way, program(FORKS)?)?) };
    let tried = [
        ("way: faults", "faults", find(Way::Faults)),
        ("way: calls", "calls", find(Way::Calls)),
        ("way: touches", "touches", find(Way::Signals(Barrier::Guard))),
    ];
    let best = tried.iter().position(|(_, _, ground)| ground.is_ok());
    let one = |(n, (what, way, ground)): (usize, (&'static str, _, Result<Ground, Error>))| {
        let (health, detail) = match ground {
            Err(lack) if best.is_none() => (Health::Broken, lack.to_string()),
            Err(lack) if best < Some(n) => (Health::Good, format!("not needed: {lack}")),
            Err(lack) => (Health::Limited, format!("faster, but {lack}")),
            Ok(_) if best == Some(n) => run(directory, Some(way), "used"),
            Ok(_) => run(directory, Some(way), "there, and slower"),
        };
        Finding { what, health, detail }
    };
    tried.into_iter().enumerate().map(one).collect()
}

/// What the patient fills.
const PATIENT_BYTES: usize = 32 << 20;
/// Pages in which all words are different, from page to page too.
const PATIENT_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Is the program that is run.
fn be(patient: Patient) -> u8 {
    match patient {
        Patient::Fills => {
            let word = |n: usize| (n as u64).wrapping_mul(PATIENT_STEP);
            let words: Vec<u64> = (0..PATIENT_BYTES / size_of::<u64>()).map(word).collect();
            let are_there = words.iter().enumerate().all(|(n, &found)| found == word(n));
            u8::from(!are_there)
        }
        Patient::Waits => {
            let read = io::stdin().read_to_end(&mut Vec::new());
            u8::from(read.is_err())
        }
    }
}

/// Runs a program in half of the memory that it needs. If that is right, `words` say so.
fn run(directory: Option<&Path>, way: Option<&str>, words: &str) -> (Health, String) {
    match run_in_half(directory, way) {
        Ok(output) if output.status.success() && output.stderr.is_empty() => {
            match pages_out(&output.stdout) {
                0 => (Health::Broken, "a program was not paged, and nothing says why".to_owned()),
                _ => (Health::Good, words.to_owned()),
            }
        }
        Ok(output) => (Health::Broken, last_line(&output.stderr)),
        Err(error) => (Health::Broken, error.to_string()),
    }
}

fn run_in_half(directory: Option<&Path>, way: Option<&str>) -> io::Result<Output> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["run", "--quiet", "--memory", "16M", "--stats", "-"]);
    command.args(way.map(|way| ["--way", way]).into_iter().flatten());
    if let Some(directory) = directory {
        let mut swap = OsString::from("file:");
        swap.push(directory);
        command.arg("--swap").arg(swap);
    }
    command.arg("--").arg(env::current_exe()?).args(["doctor", "--patient", "fills"]);
    command.stdin(Stdio::null()).output()
}

fn pages_out(stats: &[u8]) -> u64 {
    let stats: Value = serde_json::from_slice(stats).unwrap_or_default();
    stats.pointer("/summary/pages_out").and_then(Value::as_u64).unwrap_or(0)
}

/// Attaches to a program that runs already, and lets it go.
fn attach() -> Finding {
    let (health, detail) = match attach_and_detach() {
        Ok(None) => (Health::Good, "a program that ran already was in a limit".to_owned()),
        Ok(Some(refused)) => (Health::Limited, refused),
        Err(error) => (Health::Limited, error.to_string()),
    };
    Finding { what: "attach", health, detail }
}

/// Returns the last words of what has failed.
fn attach_and_detach() -> io::Result<Option<String>> {
    let mut waits = Command::new(env::current_exe()?);
    waits.args(["doctor", "--patient", "waits"]).stdin(Stdio::piped());
    let mut program = waits.spawn()?;
    let process = program.id().to_string();
    let attach = ["attach", &process, "--memory=16M", "--background"];
    let tries: [&[&str]; 2] = [&attach, &["detach", &process]];
    let failed = tries.into_iter().find_map(|words| match overspill(words) {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(Ok(last_line(&output.stderr))),
        Err(error) => Some(Err(error)),
    });
    // It ends with its input.
    drop(program.stdin.take());
    program.wait()?;
    failed.transpose()
}

fn overspill(words: &[&str]) -> io::Result<Output> {
    Command::new(env::current_exe()?).args(words).stdin(Stdio::null()).output()
}

/// Returns what `overspill run` has said last, without its name.
fn last_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    // That it was ended is what followed.
    let is_reason = |line: &&str| !line.contains("the program was ended by");
    let line = said.lines().rfind(is_reason).or(said.lines().last());
    let line = line.unwrap_or("it failed without a word");
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
