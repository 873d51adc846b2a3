//! The command line.
//!
//! Owns: what the command line may contain, its help texts, and the syntax of its values.
//! Invariants: parsing looks only at the words, then at what stands for those that are missing
//! ([`defaults`]); the command resolves once what they refer to.
//! Not here: the grammar of sizes and swap specifications, which the library owns.

mod defaults;

use crate::error::Error;
use crate::run::program::is_there;
use crate::status::FAILED;
use clap::builder::styling::Styles;
use clap::builder::{BoolishValueParser, PossibleValue};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use overspill::memory::MemoryLimit;
use overspill::{Bytes, SwapSpec, parse_bytes};
use overspill_run::{Barrier, Way};
use overspill_terminal::usage;
use rustix::process::Pid;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::exit;
use uuid::Uuid;

/// Swap in user space: run a program in less memory than it needs.
#[derive(Debug, Parser)]
#[command(name = "overspill", version, arg_required_else_help = true, styles = Styles::plain())]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Attach(AttachArgs),
    Detach(DetachArgs),
    Stats(StatsArgs),
    Top(TopArgs),
    Set(SetArgs),
    Metrics(MetricsArgs),
    Doctor(DoctorArgs),
    Mkswap(MkswapArgs),
    Completions(CompletionsArgs),
    #[command(hide = true)]
    Man(ManArgs),
    #[command(hide = true)]
    ForItself(ForItselfArgs),
}

/// Run a program, unmodified, in a given amount of memory.
///
/// The rest of what it allocates goes to swap of its own. Exits with the program's status, 128+n if
/// signal n ended it, 127 or 126 if it cannot be found or executed, and 125 if Overspill failed.
#[derive(Debug, Args)]
#[command(
    override_usage = "overspill run [OPTIONS] [--memory M] -- PROGRAM [ARGS]...",
    after_help = "Example:\n  overspill run --memory 512M --swap file:/var/tmp -- sort -S 4G big.txt\n\n\
                  Defaults: OVERSPILL_MEMORY, _SWAP (several with spaces between), _SWAP_SIZE, _WAY and \
                  _QUIET; then [run] of ~/.config/overspill/config.toml (OVERSPILL_CONFIG names \
                  another file) and of /etc/overspill.toml, with the names of the options."
)]
pub(crate) struct RunArgs {
    /// Memory that the run may use, all its processes together: 512M, 1.5GiB, or 25% of what there
    /// is [default: three quarters of what is free]. K, M, G and T are powers of 1024, with or
    /// without B or iB
    #[arg(short, long, value_name = "M", allow_hyphen_values = true)]
    pub(crate) memory: Option<MemoryLimit>,

    /// The most that `overspill set` may raise --memory to [default: four times as much, as far as
    /// the machine has it]
    #[arg(long, value_name = "M")]
    pub(crate) memory_max: Option<MemoryLimit>,

    #[command(flatten)]
    pub(crate) places: PlaceArgs,

    /// How touches of pages that are out are noticed: faults, calls or touches [default: the first
    /// of them that may be used here]
    ///
    /// With faults the kernel tells of all: that takes root, or the group that the package makes.
    /// With calls it tells of those of the program itself, and what its system calls touch is
    /// brought in before they are made. With touches they raise signals, for which no right is
    /// needed; it is the slowest.
    #[arg(long, value_name = "WAY", hide_possible_values = true)]
    pub(crate) way: Option<RunWay>,

    /// Tell JVMs and V8 by JAVA_TOOL_OPTIONS and NODE_OPTIONS to make less garbage, where the limit
    /// is small and these are not set
    #[arg(long, value_name = "YES", default_value = "yes", action = ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub(crate) tell_runtimes: bool,

    /// Leave programs alone that the program starts
    #[arg(long)]
    pub(crate) no_children: bool,

    /// Write which pages the program touches, in order, to FILE, for `overspill-lab policy
    /// --trace`. Nothing is read ahead then. Repeated touches of what fits in --memory are not
    /// seen: give it little
    #[arg(long, value_name = "FILE")]
    pub(crate) touches: Option<PathBuf>,

    /// Use less while the machine, or this container, is short of memory (PSI): what was used
    /// before goes to swap, down to an eighth of --memory, and may come back afterwards
    #[arg(long)]
    pub(crate) give_back: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// The program to run and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "PROGRAM",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub(crate) command: Vec<OsString>,
}

/// Put a process that runs already into a limit, with what it starts from now on.
///
/// What it has above the limit goes to swap. It goes on as it is, and is let go again by Ctrl-C, by
/// TERM or HUP, or by `overspill detach`: then all that is out comes back into memory. Exits with 0
/// when it was let go or has ended, and with 125 if Overspill failed. If this process is killed,
/// those that are paged are killed too: what is out could not come back.
#[derive(Debug, Args)]
#[command(
    override_usage = "overspill attach PROCESS --memory M [OPTIONS]",
    after_help = "Example:\n  overspill attach $(pidof redis-server) --memory 2G"
)]
pub(crate) struct AttachArgs {
    /// The process
    #[arg(value_parser = parse_process)]
    pub(crate) process: Pid,

    /// Memory that it and its children may use together: 512M, 1.5GiB, or 25% of what there is. K,
    /// M, G and T are powers of 1024, with or without B or iB
    #[arg(short, long, value_name = "M", allow_hyphen_values = true)]
    pub(crate) memory: Option<MemoryLimit>,

    /// The most that `overspill set` may raise --memory to [default: four times as much, as far as
    /// the machine has it]
    #[arg(long, value_name = "M")]
    pub(crate) memory_max: Option<MemoryLimit>,

    /// Return when the process is in its limit, and go on without a terminal
    #[arg(long)]
    pub(crate) background: bool,

    /// As the process that goes on: say so on standard output, and leave the terminal
    #[arg(long, hide = true)]
    pub(crate) ready: bool,

    #[command(flatten)]
    pub(crate) places: PlaceArgs,

    /// Use less while the machine, or this container, is short of memory (PSI): what was used
    /// before goes to swap, down to an eighth of --memory, and may come back afterwards
    #[arg(long)]
    pub(crate) give_back: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn parse_process(word: &str) -> Result<Pid, String> {
    word.parse().ok().and_then(Pid::from_raw).ok_or_else(|| "give the number of a process".into())
}

/// Let the processes of a run go, or what `overspill attach` has put into a limit, and wait until
/// they are.
///
/// All that is out comes back into memory; that is refused where memory has no room for it. A run
/// goes on without a limit until `overspill set --memory` gives it one.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill detach $(pidof redis-server)")]
pub(crate) struct DetachArgs {
    /// The process, or its `overspill run` or `attach`
    pub(crate) process: i32,
}

/// Where to swap.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// Where to swap; may be given several times [default: an unnamed file in $TMPDIR or /var/tmp]
    ///
    /// One of file:PATH[:SIZE], where PATH is a directory or a file, which is made (and has no name
    /// while it is used) if a SIZE is given; block:PATH, a device made ready by mkswap; ram:SIZE;
    /// compressed:SIZE, memory that holds SIZE and takes less, with ,algo=lz4 or ,algo=zstd;
    /// nbd:HOST:PORT/EXPORT or nbd+unix:PATH, a network block device, with ,export=NAME; or
    /// redis+cluster:HOST:PORT,..., a cluster of Redis or Valkey servers, with ,size=SIZE,
    /// ,replicas=N, ,lease=SECONDS, ,user=NAME and ,password-file=PATH; both of them with ,tls=on
    /// or ,tls=DIR, ,connections=N and ,timeout=SECONDS. With ,mirror=PLACE another place gets the
    /// same pages, and one of the two may fail.
    /// Followed by ,pri=N if the order matters: higher priorities are filled first, equal ones in
    /// turns. By ,discard=once, pages or both if the device is to be told what is not needed: all
    /// of it at the start, slots that were freed, or both. By ,ssd=on or ,ssd=off if the system is
    /// wrong about whether a seek costs. By ,encrypt=off if pages may be read on a file or device,
    /// or by ,encrypt=on to encrypt them in memory too.
    #[arg(short, long, value_name = "SPEC[,OPTION]...")]
    pub(crate) swap: Vec<SwapSpec>,

    /// The most that a swap file without a SIZE may grow to [default: what its disk can spare]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) swap_size: Option<Bytes>,

    /// Swap to a file or device even if it holds something else, which is then lost
    #[arg(long)]
    pub(crate) force: bool,
}

/// What a run says, and where.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Write what happened to FILE at the end, as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,

    /// Write a page to FILE at the end that shows what happened when: memory, swap, pages read and
    /// written, time spent in faults, and which memory came
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Say at the end what other limits would cost, from this one up
    #[arg(long)]
    pub(crate) plan: bool,

    /// Show in a line what the run is doing: on a terminal every second, where what the program
    /// writes may stand in the same line; in a log a line after 1, 3, 7 s, at last every minute
    #[arg(long)]
    pub(crate) progress: bool,

    /// Show this run to browsers at http://ADDR/, and to Prometheus at http://ADDR/metrics.
    /// `overspill metrics` has all runs
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<String>,

    /// Print no notes on devices and no summary
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// The value of `--way`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunWay(pub(crate) Way);

impl ValueEnum for RunWay {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self(Way::Faults),
            Self(Way::Calls),
            Self(Way::Signals(Barrier::Guard)),
            Self(Way::Signals(Barrier::NoAccess)),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self.0 {
            Way::Faults => PossibleValue::new("faults").help("By the kernel, whoever touches"),
            Way::Calls => {
                PossibleValue::new("calls").help("By the kernel where the program's own code does")
            }
            Way::Signals(Barrier::Guard) => PossibleValue::new("touches").help("By signals"),
            // As on a kernel without guards.
            Way::Signals(Barrier::NoAccess) => PossibleValue::new("shut").hide(true),
        })
    }
}

/// Look at runs that go on: one line each, or one of them in detail.
///
/// Those of this user, or of all users if this is root.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill stats $(pidof sort) | jq .summary.pages_in")]
pub(crate) struct StatsArgs {
    /// A process of a run, or its `overspill run`: prints what is known as JSON, by the names of
    /// docs/stats.md
    pub(crate) process: Option<i32>,

    /// The same of all runs, as a list
    #[arg(long, conflicts_with = "process")]
    pub(crate) json: bool,
}

/// Watch all runs of this user on the terminal: limits, rates, devices, processes, times of faults.
///
/// Keys are those of htop; F1 shows them. F7 and F8 lower and raise the limit of a run.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill top --delay 0.5")]
pub(crate) struct TopArgs {
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = parse_delay)]
    pub(crate) delay: f32,
}

fn parse_delay(word: &str) -> Result<f32, String> {
    let delay = word.parse().ok().filter(|delay| (0.1..=60.0).contains(delay));
    delay.ok_or_else(|| "give 0.1 to 60 seconds".into())
}

/// Show all runs of this user to browsers and Prometheus: serve pages and metrics, print the
/// metrics, or write them to a file.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill metrics --listen 127.0.0.1:9779")]
pub(crate) struct MetricsArgs {
    /// Serve http://ADDR/ for browsers, with plots and a map of each run's memory, and
    /// http://ADDR/metrics, until this is ended
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "textfile")]
    pub(crate) listen: Option<String>,

    /// Replace FILE, for node_exporter's textfile collector, and end
    #[arg(long, value_name = "FILE")]
    pub(crate) textfile: Option<PathBuf>,

    /// Of this run alone, for `overspill run --metrics`, which ends it by closing its input
    #[arg(long, hide = true, value_name = "RUN", requires = "listen")]
    pub(crate) of: Option<i32>,
}

/// Change the limit of a run that goes on, add swap to it or take it away, and wait until that is
/// so.
#[derive(Debug, Args)]
#[command(
    override_usage = "overspill set PROCESS --memory M\n       overspill set PROCESS --swapon SPEC\n       \
                      overspill set PROCESS --swapoff NAME",
    after_help = "Example:\n  overspill set $(pidof sort) --memory 1G\n  \
                  overspill set $(pidof sort) --swapon file:/mnt/big:100G"
)]
pub(crate) struct SetArgs {
    /// A process of the run, or its `overspill run`
    pub(crate) process: i32,

    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

/// What is changed of a run.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ChangeArgs {
    /// Memory that the run may use from now on, all its processes together, as in --memory of
    /// `overspill run`; at most its --memory-max, or four times its --memory
    #[arg(short, long, value_name = "M")]
    pub(crate) memory: Option<MemoryLimit>,

    /// Where to swap too, as in --swap of `overspill run`; after all places that it has, unless
    /// ,pri=N says otherwise
    #[arg(long, value_name = "SPEC", value_parser = parse_place)]
    pub(crate) swapon: Option<String>,

    /// Where to swap no more: a device's `name` or `area` as in `overspill stats`, or a PATH as in
    /// --swap. What is there moves to memory and to other places, if they have room
    #[arg(long, value_name = "NAME")]
    pub(crate) swapoff: Option<String>,
}

/// A specification that means the same in another directory.
fn parse_place(word: &str) -> Result<String, String> {
    word.parse::<SwapSpec>().map_err(|error| error.to_string())?;
    let relative = ["file:", "block:"].into_iter().find_map(|kind| {
        let path = word.strip_prefix(kind).filter(|path| !path.starts_with('/'))?;
        Some((kind, path))
    });
    let Some((kind, path)) = relative else { return Ok(word.to_owned()) };
    let here = std::env::current_dir().map_err(|error| format!("where this is: {error}"))?;
    let here = here.to_str().ok_or("give a path that begins with /")?;
    Ok(format!("{kind}{here}/{path}"))
}

/// Execute a program with its own number in variables.
#[derive(Debug, Args)]
pub(crate) struct ForItselfArgs {
    /// The variables, with commas between
    pub(crate) names: String,

    /// Where the program is, how it is called, and its arguments, behind --
    #[arg(last = true, required = true, num_args = 2..)]
    pub(crate) program: Vec<OsString>,
}

/// Tell what Overspill finds on this machine, and what to do about what is missing.
///
/// Exits with 0 if `overspill run` can work here, otherwise with 1.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill doctor --directory /var/tmp")]
pub(crate) struct DoctorArgs {
    /// Try files in DIR, not where the default swap file would be
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,

    /// Be the program that is run, or attached to: there may be no other
    #[arg(long, hide = true)]
    pub(crate) patient: Option<Patient>,
}

/// What `overspill doctor` runs under Overspill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Patient {
    /// Fills memory, and looks whether it stays.
    Fills,
    /// Waits for the end of its input.
    Waits,
}

/// Make a swap area of a file or a block device, for `overspill run` or for swapon.
///
/// Refuses what is mounted or in use; what holds something else, unless it is forced; and less than
/// 10 pages. Warns of what swapon would not like: holes in a file, access for others.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  overspill mkswap --label spill --check /dev/sdb1")]
pub(crate) struct MkswapArgs {
    /// Name the area, in at most 16 bytes
    #[arg(long, value_name = "L", default_value = "", hide_default_value = true)]
    pub(crate) label: String,

    /// Give the area this UUID [default: a random one]
    #[arg(long, value_name = "U")]
    pub(crate) uuid: Option<Uuid>,

    /// Read all pages first, and list those of a block device that cannot be read as bad
    #[arg(long)]
    pub(crate) check: bool,

    /// Overwrite a swap area, file system, partition table or anything else that is there
    #[arg(long)]
    pub(crate) force: bool,

    /// The file or block device
    pub(crate) path: PathBuf,
}

/// Print what a shell needs to complete command lines of `overspill`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  overspill completions bash > ~/.local/share/bash-completion/completions/overspill"
)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

/// Write the manual pages, for packages.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// An existing directory
    pub(crate) directory: PathBuf,
}

/// Returns the definition of all commands.
pub(crate) fn definition() -> clap::Command {
    CommandLine::command()
}

/// Parses the command line. Prints help and version if requested, and ends the program.
///
/// # Errors
/// [`Error::Usage`], [`Error::Default`].
pub(crate) fn parse() -> Result<Command, Error> {
    let words: Vec<OsString> = std::env::args_os().collect();
    match CommandLine::try_parse_from(&words) {
        Ok(CommandLine { command: Command::Run(args) }) => {
            defaults::complete(args).map(Command::Run)
        }
        Ok(CommandLine { command: Command::Attach(args) }) => {
            defaults::complete_attach(args).map(Command::Attach)
        }
        Ok(line) => Ok(line.command),
        // Who writes nothing wants to know what there is to write.
        Err(help) if help.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = help.print();
            exit(FAILED.into());
        }
        Err(error) if error.use_stderr() => Err(Error::Usage(
            without_run(&words).unwrap_or_else(|| usage::line(&error, &definition(), &words)),
        )),
        Err(help) => help.exit(),
    }
}

/// Returns what is said if only the word `run` is missing.
fn without_run(words: &[OsString]) -> Option<String> {
    let (this, rest) = words.split_first()?;
    let is_command = definition().find_subcommand(rest.first()?).is_some();
    let with_run = [this.clone(), "run".into()].into_iter().chain(rest.iter().cloned());
    match CommandLine::try_parse_from(with_run).ok()?.command {
        Command::Run(args) if !is_command && is_there(args.command.first()?) => {
            let program = args.command.first()?.display();
            Some(format!(
                "to run {program} write `overspill run` before it; see `overspill run --help`"
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_args(words: &[&str]) -> RunArgs {
        let words = ["overspill", "run"].iter().chain(words);
        match CommandLine::try_parse_from(words).unwrap().command {
            Command::Run(args) => args,
            other => unreachable!("`run` was written, {other:?} read"),
        }
    }

    #[test]
    fn the_definition_holds_together() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        usage::assert_examples(&definition());
    }

    fn told(words: &str) -> String {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        usage::line(&CommandLine::try_parse_from(&words).unwrap_err(), &definition(), &words)
    }

    #[test]
    fn a_forgotten_run_is_told() {
        let told = |words: &str| {
            let words: Vec<_> = words.split(' ').map(OsString::from).collect();
            without_run(&words)
        };
        for words in ["overspill sort -S 4G x", "overspill --memory 512M true"] {
            assert!(told(words).is_some_and(|line| line.contains("`overspill run`")), "{words}");
        }
        for words in ["overspill swim", "overspill top --x", "overspill RUN -m 1G true"] {
            assert_eq!(told(words), None, "{words}");
        }
    }

    #[test]
    fn the_help_is_that_of_the_command() {
        let table = [
            ("overspill swim", "see `overspill --help`"),
            ("overspill run --fast x", "see `overspill run --help`"),
            ("overspill stats x", "see `overspill stats --help`"),
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
            ("overspill stats x", "[PROCESS]: `x` is no whole number"),
            ("overspill mkswap --uuid xyz f", "--uuid `xyz`: invalid"),
        ];
        for (words, begin) in table {
            assert!(told(words).starts_with(begin), "{}", told(words));
        }
    }

    #[test]
    fn options_after_the_program_are_the_programs() {
        for dashes in [&["--"][..], &[]] {
            let words = [&["--memory", "1G"], dashes, &["sort", "--quiet", "-S", "1G"]].concat();
            let args = run_args(&words);
            assert_eq!(args.command, ["sort", "--quiet", "-S", "1G"]);
            assert!(!args.output.quiet);
        }
    }

    #[test]
    fn swaps_keep_their_order() {
        let args = run_args(&["--memory=1G", "--swap=ram:1M,pri=3", "--swap=file:/x:2M", "true"]);
        let written = ["ram:1M,pri=3", "file:/x:2M"].map(|spec| spec.parse().unwrap());
        assert_eq!(args.places.swap, written);
    }
}
