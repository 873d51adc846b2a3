//! The ways without privileges: the same programs, and system calls of all kinds.

use crate::gates::{USER, bench, compare_with};
use crate::random::Random;
use crate::sort::write_log;
use overspill_calls::{Arg, CALLS, Call};
use overspill_programs::bench::overspill;
use overspill_programs::job::MIB;
use std::ffi::OsStr;

/// The same tests for each of the ways.
macro_rules! in_each_way {
    ($($test:ident)*) => {
        mod calls { $(#[test] fn $test() { super::$test("calls") })* }
        mod touches { $(#[test] fn $test() { super::$test("touches") })* }
    };
}

in_each_way! {
    sorts_random_lines shares_pipes_with_children serves_an_ordinary_user answers_calls_as_without_us
    lets_programs_filter_their_calls works_where_copies_are_refused pages_up_to_the_last_address
}

#[test]
fn faults_page_up_to_the_last_address() {
    pages_up_to_the_last_address("faults");
}

/// As under a debugger: the stack ends where addresses do.
fn pages_up_to_the_last_address(way: &'static str) {
    let Some(bench) = bench(&["/usr/bin/python3", "setarch"]) else { return };
    let program = "b = bytearray(b'x' * (48 << 20))\n\
                   def sum_of(n): return b[n << 12] + (sum_of(n - 1) if n else 0)\n\
                   import sys; sys.setrecursionlimit(20000)\n\
                   print(sum(sum_of(900) + sum(b[::4096]) for _ in range(3)))";
    let job = bench.job(&["setarch", "-R", "/usr/bin/python3", "-c", program]);
    job.by(way).compare(16 * MIB, 0);
}

fn sorts_random_lines(way: &'static str) {
    let Some(bench) = bench(&["sort"]) else { return };
    let mut random = Random::new(7);
    bench.file("input", |out| {
        for _ in 0..500_000 {
            writeln!(out, "{:016x}{:016x}", random.next(), random.next()).unwrap();
        }
    });
    let words = ["sort", "-S", "1G", "--parallel=2", "input"];
    // A quarter of a million faults, each a signal, and on a busy machine the disk is busy too.
    bench.job(&words).by(way).patience(400).compare(10 * MIB, 0);
}

/// Forks, pipes, substitutions, signals.
const SCRIPT: &str = r#"
set -euo pipefail
for i in $(seq 60); do total=$((${total:-0} + $(echo "$i" | wc -c))); done
echo "$total"
( trap 'echo told; exit 0' TERM; for i in $(seq 20); do /bin/echo -n "$i "; done > few; cat few )
sort -S 512M -T . input | /usr/bin/python3 -c '
import hashlib, sys
lines = sys.stdin.buffer.readlines()
print(len(lines), hashlib.sha256(b"".join(lines)).hexdigest())
sys.stdout.flush()
for line in lines[::-1]: sys.stdout.buffer.write(line)
' | gzip -1n | gzip -d | cksum
"#;

fn shares_pipes_with_children(way: &'static str) {
    let tools = ["bash", "sort", "gzip", "/usr/bin/python3"];
    let Some(bench) = bench(&tools) else { return };
    bench.file("input", |out| write_log(out, 100_000));
    bench.job(&["bash", "-c", SCRIPT]).by(way).compare(24 * MIB, 0);
}

/// Filters of a program's own, and what it does before and after.
fn lets_programs_filter_their_calls(way: &'static str) {
    let Some(bench) = bench(&["cc"]) else { return };
    let program = bench.cc("filters.c");
    assert_eq!(bench.job(&[program]).by(way).in_memory(16 * MIB).text(), "ok\n");
}

/// Profiles of container engines refuse process_vm_readv, io_uring and others.
fn works_where_copies_are_refused(way: &'static str) {
    let Some(bench) = bench(&["cc", "/usr/bin/python3"]) else { return };
    let (refuses, program) = (bench.cc("refuses.c"), bench.cc("filters.c"));
    let script = format!(
        "import subprocess; data = bytes(range(256)) * (1 << 16)\n\
         print(subprocess.run(['{}'], capture_output=True, text=True).stdout, end='')\n\
         print(subprocess.run(['cksum'], input=data, capture_output=True).stdout.decode(), end='')",
        program.display()
    );
    let overspill = overspill();
    let run = ["run", "--quiet", "--memory", "16M", "--swap", "ram:64M", "--way", way, "--"];
    let words = [refuses.as_os_str(), overspill.as_os_str()].into_iter();
    let words = words.chain(run.map(OsStr::new));
    let words: Vec<&OsStr> =
        words.chain(["/usr/bin/python3", "-c", &script].map(OsStr::new)).collect();
    let ended = bench.job(&words).plain().success();
    assert_eq!(ended.text(), "ok\n948003075 16777216\n");
}

fn serves_an_ordinary_user(way: &'static str) {
    let Some(bench) = bench(&["/usr/bin/python3"]) else { return };
    let program = "import os, hashlib\nb = bytearray(os.urandom(1 << 20) * 96)\n\
                   h = hashlib.sha256(b).hexdigest()\n\
                   open('copy', 'wb').write(b)\ndel b[::2]\nb = open('copy', 'rb').read()\n\
                   print(hashlib.sha256(b).hexdigest() == h)";
    let job = bench.job(&["/usr/bin/python3", "-c", program]).user(USER);
    let ended = compare_with(&job, &job.clone().by(way), 24 * MIB);
    assert_eq!(ended.text(), "True\n");
}

/// Number of calls, if `OVERSPILL_SEEDS` does not say so.
const CALLS_MADE: u64 = 600;

fn answers_calls_as_without_us(way: &'static str) {
    let Some(bench) = bench(&["cc"]) else { return };
    bench.file("calls.h", |out| {
        CALLS.iter().for_each(|call| out.write_all(row(call).as_bytes()).unwrap());
    });
    let include = format!("-I{}", bench.path(".").display());
    let program = bench.cc_with("call_fuzz.c", &[&include, "-no-pie"], "call_fuzz");
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (seed, count) =
        (number("OVERSPILL_SEED").unwrap_or(1), number("OVERSPILL_SEEDS").unwrap_or(CALLS_MADE));
    let (seed, count) = (seed.to_string(), count.to_string());
    // The name is as long in each run: some calls return it. Addresses are the same in all.
    let job = |name: &str, address: &str| {
        std::fs::create_dir(bench.path(name)).unwrap();
        let words = [program.as_os_str(), seed.as_ref(), count.as_ref(), address.as_ref()];
        let words = &words[..if address.is_empty() { 3 } else { 4 }];
        bench.job(words).by(way).directory(name).patience(900)
    };
    let paged = job("a", "").paged(&["--memory", "16M", "--quiet"]).success();
    let pages_out = paged.stat("/summary/pages_out");
    assert!(pages_out > 1000, "{pages_out} pages went out: {paged}");
    let paged = paged.text();
    let address = paged.lines().next().unwrap();
    let plain = ["b", "c"].map(|name| job(name, address).plain().success().text());
    let compared = compare(&plain, &paged);
    println!("{compared}");
    assert!(compared.differences.is_empty(), "{:#?}", compared.differences);
}

/// A row of `calls.h`: the number, the name, and what each argument is.
fn row(call: &Call) -> String {
    let mut kinds = [b'v'; 6];
    for (n, arg) in call.args.iter().enumerate() {
        kinds[n] = match arg {
            Arg::Value => continue,
            Arg::Str => b's',
            Arg::Command | Arg::Ioctl => b'c',
            _ => b'p',
        };
        match *arg {
            Arg::Sized(n)
            | Arg::Items(n, _)
            | Arg::Bits(n)
            | Arg::Vectors(n)
            | Arg::Headers(n)
            | Arg::Messages(n)
            | Arg::Queued(n)
            | Arg::Pointers(n)
            | Arg::Pointing(n)
            | Arg::PerPage(n)
            | Arg::Futexes(n) => kinds[usize::from(n)] = b'n',
            Arg::SizedAt(n) => kinds[usize::from(n)] = b'z',
            _ => {}
        }
    }
    let kinds = String::from_utf8_lossy(&kinds);
    format!("{{{}, {:?}, {kinds:?}}},\n", call.number, call.name)
}

/// What comparing three runs shows.
#[derive(Default)]
struct Compared {
    made: usize,
    /// Results that both plain runs have.
    results: usize,
    /// What was left in memory, the same in both plain runs.
    contents: usize,
    names: std::collections::BTreeSet<String>,
    succeeded: std::collections::BTreeSet<String>,
    differences: Vec<String>,
}

impl std::fmt::Display for Compared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { made, results, contents, names, succeeded, differences } = self;
        write!(
            f,
            "{made} calls of {} kinds, {} of which succeeded; {results} results and {contents} \
             contents compared, {} different",
            names.len(),
            succeeded.len(),
            differences.len(),
        )
    }
}

/// Calls that write times and CPUs, which may be the same twice and another at the third time.
const OF_THE_MOMENT: [&str; 8] =
    ["getcpu", "getitimer", "setitimer", "getrusage", "times", "sysinfo", "select", "pselect6"];

/// Compares what a run printed with what two plain runs did; what differs between those is not
/// looked at.
fn compare(plain: &[String; 2], paged: &str) -> Compared {
    let mut compared = Compared::default();
    let [one, other] = plain;
    assert_eq!(one.lines().count(), paged.lines().count());
    for ((one, other), paged) in one.lines().zip(other.lines()).zip(paged.lines()).skip(1) {
        let [one, other, paged] =
            [one, other, paged].map(|line| line.split(' ').collect::<Vec<_>>());
        let same = |n: usize| one.get(n) == other.get(n);
        let differs = |n: usize| same(n) && one.get(n) != paged.get(n);
        compared.made += 1;
        compared.results += usize::from(same(2));
        compared.contents += usize::from(same(3));
        compared.names.insert(one[1].into());
        if !one[2].starts_with('-') {
            compared.succeeded.insert(one[1].into());
        }
        if differs(2) || differs(3) && !OF_THE_MOMENT.contains(&one[1]) {
            compared.differences.push(format!("{} -> {}", one.join(" "), paged.join(" ")));
        }
    }
    compared
}
