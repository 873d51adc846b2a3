//! `overspill doctor`: what works on this machine.
//!
//! Not here: the probes and their messages, which `overspill run` uses for its refusals too.

use crate::args::DoctorArgs;
use crate::error::Error;
use overspill::doctor::{Finding, Health, examine};
use std::io::Write;

/// Prints one line per finding; returns 1 if one of them makes runs impossible.
///
/// # Errors
/// [`Error::NoDirectory`], [`Error::Output`].
pub(crate) fn doctor(args: &DoctorArgs) -> Result<u8, Error> {
    let directory = args.directory.as_deref();
    if let Some(missing) = directory.filter(|directory| !directory.is_dir()) {
        return Err(Error::NoDirectory(missing.to_owned()));
    }
    let findings = examine(directory);
    std::io::stdout().write_all(table(&findings).as_bytes())?;
    Ok(findings.iter().any(|finding| finding.health == Health::Broken).into())
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
