//! Mistakes on the command line, and help.

use crate::{lab, stdout};

#[test]
fn mistakes_of_measurements_are_told_in_one_line() {
    let table: &[(&[&str], &[&str])] = &[
        (&[], &["subcommand", "ablate, slots, memory, locks, policy, compare, programs"]),
        (&["comapre"], &["did you mean `compare`?"]),
        (&["compare", "--x"], &["see `overspill-lab compare --help`"]),
        (&["sim", "run", "--seed", "x"], &["--seed: `x` is no whole number", "sim run --help"]),
        (&["ablate", "--threads", "0"], &["--threads 0", "1 to 256"]),
        (&["ablate", "--seconds", "nan"], &["--seconds NaN", "0.05 to 3600"]),
        (&["ablate", "--rounds", "0"], &["--rounds 0", "1 to 1000"]),
        (&["ablate", "--mechanism", "magic"], &["`magic`", "scan_more, scan_base"]),
        (&["ablate", "--html", "/nowhere/x"], &["/nowhere/x", "name another file"]),
        (&["slots", "--threads", "2,99"], &["--threads 99", "1 to 64"]),
        (&["slots", "--threads", "two"], &["--threads", "two"]),
        (&["compare", "--ways", "swim"], &["no way is called `swim`", "kernel, run, region"]),
        (&["compare", "--devices", "floppy"], &["`floppy`", "zram, ramdisk, file"]),
        (&["compare", "--content", "soup"], &["`soup`", "zero, compressible"]),
        (&["compare", "--workloads", "unifrom"], &["`unifrom`", "uniform, normal"]),
        (&["programs", "--programs", "vi"], &["`vi`", "sort-log, sort-random"]),
        (&["compare", "--rounds", "0"], &["--rounds 0", "1 to 1000"]),
        (&["compare", "--set", "32M"], &["--set 32 MiB", "64 MiB to"]),
        (&["compare", "--memory", "1M"], &["--memory 1 MiB", "4 MiB to"]),
        (&["touch", "uniform", "--ratio", "101"], &["--ratio 101", "0 to 100"]),
        (&["touch", "uniform", "--offset", "512"], &["--offset 512", "1 to 511"]),
        (&["touch", "zipf", "--shape", "1"], &["--shape 1", "0 to 0.999"]),
        (&["touch", "uniform", "--memory", "8M"], &["--swap <SPEC>"]),
        (&["touch", "read", "--cgroup", "/nowhere"], &["/nowhere/cgroup.procs", "name one"]),
    ];
    for (args, words) in table {
        let output = lab().args(*args).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{args:?}: {text}");
        assert!(text.starts_with("overspill-lab: ") && text.trim_end().lines().count() == 1);
        for word in *words {
            assert!(text.contains(word), "`{word}` in {text}");
        }
    }
}

#[test]
fn help_and_version_are_no_failures() {
    let table: [(&[&str], &str); 4] = [
        (&["ablate", "--help"], "--mechanism <NAME>"),
        (&["compare", "--help"], "--workloads <NAME,...>"),
        (&["touch", "--help"], "incompressible  as uniform"),
        (&["--version"], concat!("overspill-lab ", env!("CARGO_PKG_VERSION"))),
    ];
    for (args, words) in table {
        let output = lab().args(args).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}");
        assert!(stdout(&output).contains(words), "{args:?}: {}", stdout(&output));
    }
}
