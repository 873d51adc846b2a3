//! python3: objects of all sizes, and numpy.

use overspill_programs::bench::Bench;
use overspill_programs::job::MIB;
use std::process::Command;

const PYTHON: &str = "/usr/bin/python3";

/// Builds, shuffles and hashes 272 MiB in blocks, plus many small objects.
const OBJECTS: &str = r#"
import hashlib, random
random.seed(1)
blocks = [random.randbytes(65536) for _ in range(4096)]
records = [{"number": i, "name": "record %d" % i} for i in range(60000)]
random.shuffle(blocks)
digest = hashlib.sha256()
for block in blocks:
    digest.update(block)
text = "".join(record["name"] for record in records)
digest.update(text.encode())
halves = {i: block[:32768] for i, block in enumerate(blocks[:1024])}
blocks[1000:3000] = []
digest.update(b"".join(halves[i] for i in sorted(halves, key=lambda i: i * 7919 % 1024)))
print(len(blocks), sum(map(len, blocks)), sum(r["number"] for r in records), digest.hexdigest())
"#;

/// The text of the interpreter, numpy and its BLAS, which are file pages: 16.6 MiB are touched.
const UNMANAGED: u64 = 18 * MIB;

/// Arrays of 128 MiB each.
const ARRAYS: &str = r#"
import hashlib
import numpy
rng = numpy.random.default_rng(1)
a = rng.random(1 << 24)
print(repr(a.sum()), repr(a.mean()), int(a.argmax()))
a.sort()
b = numpy.cumsum(a)
b *= 2
print(repr(b[-1]), repr((b[::4097] - a[::4097]).sum()))
m = a.reshape(4096, 4096)
print(repr(numpy.trace(m)), repr(m[::64, ::64].T.sum()), repr((a > 0.5).sum()))
print(repr(numpy.partition(a[::16].copy(), 1000)[1000]))
print(hashlib.sha256(memoryview(a).cast("B")).hexdigest())
print(hashlib.sha256(memoryview(b).cast("B")).hexdigest())
"#;

#[test]
fn builds_shuffles_and_hashes_objects() {
    let Some(bench) = Bench::with(&[PYTHON]) else { return };
    bench.job(&[PYTHON, "-c", OBJECTS]).compare(64 * MIB, 0);
}

#[test]
fn starts_through_a_script_in_the_path() {
    let Some(bench) = Bench::with(&["python3"]) else { return };
    let program = "b = bytearray(160 << 20)\nfor i in range(0, len(b), 4096): b[i] = i >> 12 & 255\n\
                   print(sum(b[::4096]))";
    bench.job(&["python3", "-c", program]).in_memory(32 * MIB);
}

#[test]
fn computes_on_arrays_of_four_times_the_limit() {
    let Some(bench) = Bench::with(&[PYTHON]) else { return };
    if !Command::new(PYTHON).args(["-c", "import numpy"]).output().unwrap().status.success() {
        println!("skipped: numpy is not installed for {PYTHON}");
        return;
    }
    let job = bench.job(&[PYTHON, "-c", ARRAYS]).env("OPENBLAS_NUM_THREADS", "2");
    job.compare(64 * MIB, UNMANAGED);
}

/// Makes a page executable by a function taken from libc's handle, which nobody sees (ctypes, JNA
/// and P/Invoke do so; so does polars when it is imported), and unmaps it.
const UNSEEN: &str = r#"
import ctypes, mmap
libc = ctypes.CDLL("libc.so.6")
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
for rights in (mmap.PROT_READ | mmap.PROT_EXEC, 0):
    page = mmap.mmap(-1, 4096, flags=flags)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(4096), rights) == 0
    page.close()
    pages = [mmap.mmap(-1, 4096, flags=flags) for _ in range(4)]
    for page in pages:
        page[0] = 1
print("ok")
"#;

#[test]
fn a_page_that_is_handed_out_again_may_be_written_to() {
    let Some(bench) = Bench::with(&[PYTHON]) else { return };
    let ended = bench.job(&[PYTHON, "-c", UNSEEN]).paged(&["--memory", "16M", "--quiet"]).success();
    assert_eq!(ended.text(), "ok\n");
}
