//! What is said about a mistaken command line.
//!
//! Invariants: one line: the mistake, with the value once; what may have been meant; where to read
//! on, which is the help of the command that was meant, not of all.

use super::definition;
use clap::error::{ContextKind, ContextValue};
use std::error::Error;
use std::ffi::OsString;
use std::num::{ParseFloatError, ParseIntError};

/// Returns the line about a mistake in `words`, the first of which is this program's name.
pub(super) fn line(error: &clap::Error, words: &[OsString]) -> String {
    let mistake = bad_value(error).unwrap_or_else(|| first_paragraph(&error.to_string()));
    let meant = suggestion(error).map(|meant| format!("; did you mean `{meant}`?"));
    let meant = meant.unwrap_or_default();
    format!("{mistake}{meant}; see `{} --help`", command_of(words))
}

/// An option with a value that its own parser refuses. Most reasons repeat the value.
fn bad_value(error: &clap::Error) -> Option<String> {
    let option = context(error, ContextKind::InvalidArg)?;
    let value = context(error, ContextKind::InvalidValue)?;
    let source = error.source()?;
    let reason = if source.is::<ParseIntError>() {
        format!("`{value}` is no whole number")
    } else if source.is::<ParseFloatError>() {
        format!("`{value}` is no number")
    } else {
        source.to_string()
    };
    let option = option.split(' ').next()?;
    let said = !value.is_empty() && reason.contains(&value);
    Some(if said { format!("{option}: {reason}") } else { format!("{option} `{value}`: {reason}") })
}

fn suggestion(error: &clap::Error) -> Option<String> {
    let kinds =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    kinds.into_iter().find_map(|kind| context(error, kind))
}

fn context(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(one) => Some(one.clone()),
        ContextValue::Strings(all) => all.first().cloned(),
        _ => None,
    }
}

/// Returns the first paragraph of a clap message, in one line and without its prefix.
fn first_paragraph(message: &str) -> String {
    let paragraph = message.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    let line = words.join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

/// Returns the command that `words` begin with, such as `overspill bench compare`.
fn command_of(words: &[OsString]) -> String {
    let all = definition();
    let (mut command, mut name) = (&all, all.get_name().to_owned());
    for word in words.iter().skip(1) {
        let Some(next) = command.find_subcommand(word) else { break };
        name = format!("{name} {}", next.get_name());
        command = next;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::CommandLine;
    use clap::Parser;

    fn told(words: &str) -> String {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        line(&CommandLine::try_parse_from(&words).unwrap_err(), &words)
    }

    #[test]
    fn several_lines_become_one() {
        let message = "error: not provided:\n  --memory <M>\n\nUsage: overspill\n";
        assert_eq!(first_paragraph(message), "not provided: --memory <M>");
    }

    #[test]
    fn the_help_is_that_of_the_command() {
        let table = [
            ("overspill swim", "see `overspill --help`"),
            ("overspill run --fast x", "see `overspill run --help`"),
            ("overspill bench compare --x", "see `overspill bench compare --help`"),
            ("overspill sim run --seed x", "see `overspill sim run --help`"),
            ("overspill mkswap", "see `overspill mkswap --help`"),
        ];
        for (words, help) in table {
            assert!(told(words).ends_with(help), "{}", told(words));
        }
    }

    #[test]
    fn what_may_have_been_meant_is_named() {
        let table = [
            ("overspill run --memroy 1G true", "did you mean `--memory`?"),
            ("overspill bench comapre", "did you mean `compare`?"),
            ("overspill docter", "did you mean `doctor`?"),
        ];
        for (words, meant) in table {
            assert!(told(words).contains(meant), "{}", told(words));
        }
    }

    #[test]
    fn a_value_is_named_once() {
        let table = [
            ("overspill run --memory -1 true", "--memory: bad size `-1`"),
            ("overspill run --memory 64Q true", "--memory: bad size `64Q`"),
            ("overspill run -m 1G -s ram: true", "--swap: bad swap specification `ram:`: the size"),
            ("overspill sim run --seed x", "--seed: `x` is no whole number"),
            ("overspill mkswap --uuid xyz f", "--uuid `xyz`: invalid"),
        ];
        for (words, begin) in table {
            assert!(told(words).starts_with(begin), "{}", told(words));
        }
    }
}
