//! What leaves memory is not to be read on the device.

use memchr::memmem;
use overspill::{MkswapOptions, mkswap};
use overspill_programs::bench::Bench;
use overspill_programs::job::{MIB, assert_same};
use std::path::Path;

const LIMIT: u64 = 16 * MIB;
const NOBODY: u32 = 65534;

/// Fills 64 MiB with lines that are easily recognised, and reads them twice, so that they leave
/// memory and come back.
pub(crate) const SECRETS: &str = r#"
lines = [b"%06d: the password of this page is 'correct horse battery staple'\n" % n * 50 for n in range(20000)]
for turn in range(2):
    assert all(line.startswith(b"%06d: the password" % n) for n, line in enumerate(lines))
print(sum(map(len, lines)))
"#;

/// Counts what is known of the program's memory in a file, a MiB at a time.
pub(crate) fn found_in(file: &Path) -> usize {
    found_in_content(&std::fs::read(file).unwrap())
}

pub(crate) fn found_in_content(content: &[u8]) -> usize {
    let known: [&[u8]; 3] = [b"the password of", b"correct horse ba", b"battery staple'\n"];
    let finds = |chunk: &[u8]| known.iter().any(|words| memmem::find(chunk, words).is_some());
    content.chunks(MIB as usize).filter(|chunk| finds(chunk)).count()
}

#[test]
fn a_swap_file_says_nothing_of_the_programs_memory() {
    let Some(bench) = Bench::with(&["/usr/bin/python3"]) else { return };
    let job = bench.job(&["/usr/bin/python3", "-c", SECRETS]);
    let plain = job.plain().success();
    for (options, readable) in [("", false), (",encrypt=off", true), (",encrypt=on", false)] {
        // A prepared area keeps what was swapped to it; a file that was empty would be again.
        let file = bench.path("swap");
        std::fs::write(&file, vec![0; 128 * MIB as usize]).unwrap();
        mkswap(&file, &MkswapOptions::default()).unwrap();
        let swap = format!("file:{}{options}", file.display());
        let limit = LIMIT.to_string();
        let paged = job.paged(&["--memory", &limit, "--swap", &swap, "--quiet"]).success();
        assert_same(&plain.output, &paged.output);
        paged.assert_paged(LIMIT, 0);
        let found = found_in(&file);
        assert_eq!(found > 20, readable, "`{options}`: in {found} MiB of the swap file");
        assert!(readable || found == 0, "`{options}`: in {found} MiB of the swap file");
    }
}

/// Compressed memory that is encrypted holds the same pages, only no page of one word for nothing.
#[test]
fn compressed_memory_can_be_encrypted() {
    let Some(bench) = Bench::with(&["/usr/bin/python3"]) else { return };
    let job = bench.job(&["/usr/bin/python3", "-c", SECRETS]);
    let plain = job.plain().success();
    let limit = LIMIT.to_string();
    let swap = "compressed:256M,encrypt=on";
    let paged = job.paged(&["--memory", &limit, "--swap", swap, "--quiet"]).success();
    assert_same(&plain.output, &paged.output);
    paged.assert_paged(LIMIT, 0);
    assert!(paged.notes().contains("encrypted with"), "{}", paged.notes());
}

/// A program that may lock no memory has the keys all the same, and its limit.
#[test]
fn keys_need_no_right_to_lock_memory() {
    let Some(bench) = crate::gates::bench(&["/usr/bin/python3", "/bin/sh"]) else { return };
    let script = "ulimit -l 0 && exec /usr/bin/python3 -c \"$0\"";
    let job = bench.job(&["/bin/sh", "-c", script, SECRETS]).by("touches").user(NOBODY);
    assert_eq!(job.in_memory(LIMIT).text(), "68000000\n");
}
