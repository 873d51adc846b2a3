//! What `overspill run` and `overspill attach` take where the command line says nothing.
//!
//! Owns: the places of defaults, and their order: the environment (`OVERSPILL_*`), the user's file,
//! the system's. `OVERSPILL_CONFIG` names another file in place of both, or none if it is empty.
//! Invariants: for each option the first place that says something counts. A value is read by the
//! parser of the command line; a mistake names its place, also in a file of which nothing is
//! needed.
//! Not here: options of other commands, and those that name files to write, which every run would
//! overwrite.

use super::{AttachArgs, OutputArgs, PlaceArgs, RunArgs, RunWay};
use crate::error::Error;
use clap::ValueEnum;
use overspill::memory::MemoryLimit;
use overspill::{Bytes, SwapSpec, parse_bytes};
use serde::Deserialize;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const SYSTEM_FILE: &str = "/etc/overspill.toml";

/// A configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    #[serde(default)]
    run: Words,
}

/// The words of one place, by the names of the options.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Words {
    memory: Option<String>,
    #[serde(default)]
    swap: Vec<String>,
    swap_size: Option<String>,
    way: Option<String>,
    quiet: Option<bool>,
}

/// The words of one place, read.
#[derive(Debug, Default)]
struct Defaults {
    memory: Option<MemoryLimit>,
    swap: Vec<SwapSpec>,
    swap_size: Option<Bytes>,
    way: Option<RunWay>,
    quiet: Option<bool>,
}

/// Completes `args` with defaults.
///
/// # Errors
/// [`Error::Default`].
pub(super) fn complete(mut args: RunArgs) -> Result<RunArgs, Error> {
    let Defaults { memory, way, .. } = fill(&mut args.places, &mut args.output)?;
    args.memory = args.memory.or(memory);
    args.way = args.way.or(way);
    Ok(args)
}

/// As [`complete`]. What a process has already is not free, so there is no usual limit for it.
///
/// # Errors
/// [`Error::NoLimit`] too.
pub(super) fn complete_attach(mut args: AttachArgs) -> Result<AttachArgs, Error> {
    let Defaults { memory, .. } = fill(&mut args.places, &mut args.output)?;
    args.memory = args.memory.or(memory);
    args.memory.map(|_| args).ok_or(Error::NoLimit)
}

/// A file with more is cut, and so not understood.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Fills in what all have; returns the defaults, of each option the first that there is.
fn fill(places: &mut PlaceArgs, output: &mut OutputArgs) -> Result<Defaults, Error> {
    let found = found()?;
    if places.swap.is_empty() {
        places.swap.clone_from(&found.swap);
    }
    places.swap_size = places.swap_size.or(found.swap_size);
    output.quiet |= found.quiet.unwrap_or(false);
    Ok(found)
}

fn found() -> Result<Defaults, Error> {
    let variable = |name: &str| std::env::var(name).ok();
    let named = variable("OVERSPILL_CONFIG");
    let needed = named.is_some();
    let mut found = of_environment(variable)?;
    for file in files(named, user_directory()) {
        found = found.or(of_file(&file, needed)?.unwrap_or_default());
    }
    Ok(found)
}

impl Defaults {
    fn or(self, other: Self) -> Self {
        Self {
            memory: self.memory.or(other.memory),
            swap: if self.swap.is_empty() { other.swap } else { self.swap },
            swap_size: self.swap_size.or(other.swap_size),
            way: self.way.or(other.way),
            quiet: self.quiet.or(other.quiet),
        }
    }
}

/// The files to look at, in their order; those that were not named need not be there.
fn files(named: Option<String>, user: Option<PathBuf>) -> Vec<PathBuf> {
    match named {
        Some(none) if none.is_empty() => Vec::new(),
        Some(file) => vec![file.into()],
        None => {
            let user = user.map(|directory| directory.join("overspill/config.toml"));
            user.into_iter().chain([SYSTEM_FILE.into()]).collect()
        }
    }
}

/// As the XDG base directory specification has it: a relative path counts as none.
fn user_directory() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    named.filter(|path| path.is_absolute()).or_else(home)
}

fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Defaults, Error> {
    let word = |name: &str| variable(name).filter(|word| !word.is_empty());
    let swap = word("OVERSPILL_SWAP").unwrap_or_default();
    let words = Words {
        memory: word("OVERSPILL_MEMORY"),
        swap: swap.split_whitespace().map(str::to_owned).collect(),
        swap_size: word("OVERSPILL_SWAP_SIZE"),
        way: word("OVERSPILL_WAY"),
        quiet: word("OVERSPILL_QUIET").map(|word| word != "0"),
    };
    words.read(|option| {
        let name = option.to_uppercase().replace('-', "_");
        format!("OVERSPILL_{name}")
    })
}

/// Reads a file; one that is not `needed` may also be out of reach: the HOME of who runs this as
/// another user often is.
fn of_file(path: &Path, needed: bool) -> Result<Option<Defaults>, Error> {
    let place = path.display().to_string();
    let is_out_of_reach = |kind| {
        matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied)
    };
    let text = match read_own(path) {
        Ok(text) => text,
        Err(error) if !needed && is_out_of_reach(error.kind()) => return Ok(None),
        Err(error) => return Err(Error::Default { place, reason: error.to_string() }),
    };
    of_text(&text, &place).map(Some)
}

fn of_text(text: &str, place: &str) -> Result<Defaults, Error> {
    let read: Result<Configuration, toml::de::Error> = toml::from_str(text);
    let configuration = read.map_err(|error| {
        let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
        let place = line.map_or(place.to_owned(), |line| format!("{place}:{line}"));
        Error::Default { place, reason: error.message().replace('\n', " ") }
    })?;
    configuration.run.read(|option| format!("`{option}` in {place}"))
}

/// Reads a file of this user or of root, which nobody else can have written to: it says where pages
/// go. One of another user, whose HOME this may be, is out of reach.
fn read_own(path: &Path) -> io::Result<String> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    let (owner, me) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != me && owner != 0 {
        let why = format!("it is user {owner}'s, and says where your pages go");
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    if found.is_file() && found.mode() & 0o002 != 0 {
        return Err(io::Error::other("anybody may write to it: chmod o-w"));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

impl Words {
    /// Reads the words; `place` says where an option's are.
    fn read(self, place: impl Fn(&str) -> String) -> Result<Defaults, Error> {
        let swap = self.swap.into_iter();
        let swap =
            swap.filter_map(|spec| one(Some(spec), || place("swap"), str::parse).transpose());
        Ok(Defaults {
            memory: one(self.memory, || place("memory"), str::parse)?,
            swap: swap.collect::<Result<_, _>>()?,
            swap_size: one(self.swap_size, || place("swap-size"), parse_bytes)?,
            way: one(
                self.way,
                || place("way"),
                |word| RunWay::from_str(word, false).map_err(|_| "give faults, calls or touches"),
            )?,
            quiet: self.quiet,
        })
    }
}

fn one<T, E: Display>(
    word: Option<String>,
    place: impl Fn() -> String,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, Error> {
    let read = word.map(|word| parse(&word)).transpose();
    read.map_err(|error| Error::Default { place: place(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_mutate::Script;

    fn environment(set: &[(&str, &str)]) -> Result<Defaults, Error> {
        of_environment(|name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn file(text: &str) -> Result<Option<Defaults>, Error> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        of_file(file.path(), true)
    }

    #[test]
    fn variables_are_named_like_the_options() {
        let found = environment(&[
            ("OVERSPILL_MEMORY", "25%"),
            ("OVERSPILL_SWAP", "ram:1M,pri=3  file:/var/tmp"),
            ("OVERSPILL_SWAP_SIZE", "1G"),
            ("OVERSPILL_WAY", "calls"),
            ("OVERSPILL_QUIET", "1"),
        ]);
        let found = found.unwrap();
        assert_eq!(found.memory, Some(MemoryLimit::Percent(25.0)));
        assert_eq!(found.swap, ["ram:1M,pri=3", "file:/var/tmp"].map(|s| s.parse().unwrap()));
        assert_eq!(found.swap_size, Some(Bytes(1 << 30)));
        assert_eq!(found.way, Some(RunWay(overspill_run::Way::Calls)));
        assert_eq!(found.quiet, Some(true));
    }

    #[test]
    fn an_empty_variable_says_nothing() {
        let found = environment(&[("OVERSPILL_MEMORY", ""), ("OVERSPILL_SWAP", " ")]).unwrap();
        assert!(found.memory.is_none() && found.swap.is_empty() && found.quiet.is_none());
    }

    #[test]
    fn a_file_has_the_options_names() {
        let text =
            "[run]\nmemory = \"1G\"\nswap = [\"ram:1M\"]\nswap-size = \"2G\"\nquiet = true\n";
        let found = file(text).unwrap().unwrap();
        assert_eq!(found.memory, Some(MemoryLimit::Bytes(Bytes(1 << 30))));
        assert_eq!(found.swap, ["ram:1M".parse().unwrap()]);
        assert_eq!((found.swap_size, found.quiet), (Some(Bytes(2 << 30)), Some(true)));
        for path in ["/nowhere/config.toml", "/dev/null/config.toml"].map(Path::new) {
            assert!(of_file(path, false).unwrap().is_none());
            let told = of_file(path, true).unwrap_err().to_string();
            assert!(told.starts_with(path.to_str().unwrap()), "{told}");
        }
    }

    #[test]
    fn mistakes_name_their_place() {
        let told = |found: Result<Defaults, Error>| found.unwrap_err().to_string();
        let of_file = |text| told(file(text).map(Option::unwrap_or_default));
        let variable = told(environment(&[("OVERSPILL_MEMORY", "64Q")]));
        assert!(variable.starts_with("OVERSPILL_MEMORY: bad size `64Q`"), "{variable}");
        let table = [
            ("[run]\nmemory = \"64Q\"\n", ["`memory` in /", ": bad size `64Q`"]),
            ("[run]\nswap = [\"ram:\"]\n", ["`swap` in /", "the size is missing"]),
            ("[run]\n\nmemroy = \"1G\"\n", [":3: unknown field `memroy`", "`swap-size`"]),
            ("[walk]\n", [":1: unknown field `walk`", "`run`"]),
            ("[run]\nmemory = 5\n", [":2: invalid type", "a string"]),
        ];
        for (text, words) in table {
            let told = of_file(text);
            assert!(words.iter().all(|word| told.contains(word)), "{told}");
            assert_eq!(told.lines().count(), 1, "{told}");
        }
    }

    #[test]
    fn a_named_file_replaces_both_and_an_empty_name_all() {
        let user = || Some(PathBuf::from("/home/u/.config"));
        let usual = ["/home/u/.config/overspill/config.toml", SYSTEM_FILE];
        assert_eq!(files(None, user()), usual.map(PathBuf::from));
        assert_eq!(files(Some("/x.toml".into()), user()), [PathBuf::from("/x.toml")]);
        assert!(files(Some(String::new()), user()).is_empty());
    }

    #[test]
    fn whatever_a_file_says_is_read_or_refused() {
        let samples = [
            "[run]\nmemory = \"25%\"\nswap = [\"ram:1M,pri=3\", \"file:/x\"]\nway = \"calls\"\nquiet = true\n",
        ];
        bolero::check!().with_type::<Script>().for_each(|script| {
            let _ = of_text(&script.text(&samples), "here").map_err(|error| error.to_string());
        });
    }
}
