//! What is said about a mistaken command line.
//!
//! Invariants: one line: the mistake, with the value once; what may have been meant; where to read
//! on, which is the help of the command that was meant, not of all.

use clap::Command;
use clap::error::{ContextKind, ContextValue};
use std::error::Error;
use std::ffi::OsString;
use std::num::{ParseFloatError, ParseIntError};

/// Returns the line about a mistake in `words`, the first of which is the name of the program, for
/// one with this `definition`.
pub fn line(error: &clap::Error, definition: &Command, words: &[OsString]) -> String {
    let mistake = bad_value(error).unwrap_or_else(|| first_paragraph(&error.to_string()));
    let meant = suggestion(error).map(|meant| format!("; did you mean `{meant}`?"));
    let meant = meant.unwrap_or_default();
    format!("{mistake}{meant}; see `{} --help`", command_of(definition, words))
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

/// Returns the command that `words` begin with, such as `overspill-lab sim run`.
fn command_of(definition: &Command, words: &[OsString]) -> String {
    let (mut command, mut name) = (definition, definition.get_name().to_owned());
    for word in words.iter().skip(1) {
        let Some(next) = command.find_subcommand(word) else { break };
        name = format!("{name} {}", next.get_name());
        command = next;
    }
    name
}

/// Asserts, for tests, that the help of every command ends with an example.
///
/// # Panics
/// The help of a command has none.
pub fn assert_examples(definition: &Command) {
    for sub in definition.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Example:\n  overspill"), "{}", sub.get_name());
        assert_examples(sub);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_lines_become_one() {
        let message = "error: not provided:\n  --memory <M>\n\nUsage: overspill\n";
        assert_eq!(first_paragraph(message), "not provided: --memory <M>");
    }
}
