//! Swapping to compressed memory: the same output in less memory than the pages would take, also in
//! a tree of processes that share them.

use crate::sort::write_log;
use overspill_programs::bench::Bench;
use overspill_programs::job::{Ended, MIB, assert_same};

const LIMIT: u64 = 32 * MIB;

/// Parent and children share swapped pages; each reads them, changes half and reads them again. The
/// middle child is killed while it writes, so others must free what it held.
pub(crate) const TREE: &str = r#"
import hashlib, os, signal
words = [b"%06d " % i * 500 for i in range(24000)]
blocks = [bytearray(b"".join(words[i:i + 20])) for i in range(0, 24000, 20)]
del words
def digest():
    state = hashlib.sha256()
    for block in blocks: state.update(block)
    return state.hexdigest()
def change(tag):
    for block in blocks[::2]: block[::4096] = tag * len(block[::4096])
before, children = digest(), []
for number in range(3):
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        assert digest() == before
        os.write(writable, b"read")
        while number == 1: change(b"y")
        change(b"%d" % number)
        os.write(writable, digest().encode())
        os._exit(0)
    os.close(writable)
    children.append((child, readable))
change(b"p")
for number, (child, readable) in enumerate(children):
    assert os.read(readable, 4) == b"read"
    if number == 1: os.kill(child, signal.SIGKILL)
    print(os.read(readable, 100).decode(), os.waitpid(child, 0)[1])
print(digest(), before)
"#;

fn compressed(bench: &Bench, words: &[&str], swap: &str) -> Ended {
    let job = bench.job(words);
    let plain = job.plain().success();
    let limit = LIMIT.to_string();
    let paged = job.paged(&["--memory", &limit, "--swap", swap, "--quiet"]).success();
    assert_same(&plain.output, &paged.output);
    paged.assert_paged(LIMIT, 0);
    paged
}

/// Returns the maximum for the first device.
fn memory_max(ended: &Ended) -> u64 {
    ended.stat("/devices/0/compressed/memory_bytes_max")
}

fn held_max(ended: &Ended) -> u64 {
    ended.stat("/devices/0/compressed/held_pages_max") * 4096
}

#[test]
fn sorts_in_compressed_memory() {
    let Some(bench) = Bench::with(&["sort"]) else { return };
    bench.file("input", |out| write_log(out, 250_000));
    for algorithm in ["lz4", "zstd"] {
        let swap = format!("compressed:512M,algo={algorithm}");
        let words = ["sort", "-S", "1G", "--parallel=2", "-T", ".", "input"];
        let ended = compressed(&bench, &words, &swap);
        let (held, memory) = (held_max(&ended), memory_max(&ended));
        assert!(held > 64 * MIB && memory < held / 2, "{held} bytes in {memory}");
        println!("sort, {algorithm}: {} MiB in {} MiB", held / MIB, memory / MIB);
    }
}

#[test]
fn a_tree_of_processes_shares_compressed_pages() {
    let Some(bench) = Bench::with(&["/usr/bin/python3"]) else { return };
    let ended = compressed(&bench, &["/usr/bin/python3", "-c", TREE], "compressed:1G");
    assert_eq!(ended.text().lines().nth(1), Some(" 9"), "the second child was killed: {ended}");
    assert!(memory_max(&ended) < held_max(&ended) / 4);
}

/// Freed pages take no memory: blocks of different content are allocated and freed, eight times as
/// much in total as at any one time.
#[test]
fn memory_of_freed_pages_is_used_again() {
    const PROGRAM: &str = "
import random
random.seed(1)
for round in range(8):
    block = bytearray(random.randbytes(2048) + bytes([round + 1] * 2048)) * (16 << 8)
    for i in range(0, len(block), 4096): block[i:i + 8] = i.to_bytes(8)
    block = bytearray(random.randbytes(1 << 20)) * 48
";
    let Some(bench) = Bench::with(&["/usr/bin/python3"]) else { return };
    let ended = compressed(&bench, &["/usr/bin/python3", "-c", PROGRAM], "compressed:512M");
    let memory = memory_max(&ended);
    assert!(memory < 72 * MIB, "{} MiB for 64 MiB at a time", memory / MIB);
}

#[test]
fn a_full_store_overflows_to_the_next_area() {
    let Some(bench) = Bench::with(&["/usr/bin/python3"]) else { return };
    let program = "b = bytearray(160 << 20)\nfor i in range(0, len(b), 4096): b[i] = i >> 12 & 255\n\
                   print(sum(b[::4096]))";
    let job = bench.job(&["/usr/bin/python3", "-c", program]);
    let limit = LIMIT.to_string();
    let swaps = ["--swap", "compressed:32M,pri=9", "--swap", "ram:512M"];
    let ended = job.paged(&[&["--memory", &limit], &swaps[..]].concat()).success();
    // All of it, except clusters and slot caches that are partly used when the next area is
    // reached.
    let held = held_max(&ended);
    assert!((24 * MIB..=32 * MIB).contains(&held), "{held} bytes held");
    assert!(ended.errors.contains(" of 32 MiB, in "), "{}", ended.errors);
}
