//! bash: pipes of programs that all page, and many short ones.

use crate::sort::write_log;
use overspill_programs::bench::Bench;
use overspill_programs::job::MIB;

/// The log is sorted, read by python, summed up by awk and compressed, all at the same time, with
/// several hundred forks before and after.
const SCRIPT: &str = r#"
set -euo pipefail
count() { echo "$1" | wc -c; }
total=0
for i in $(seq 150); do total=$((total + $(count "$i"))); done
echo "$total"
exec 5>log.copy
sort -S 512M --parallel=2 -T . input |
    /usr/bin/python3 -c '
import hashlib, sys
lines = sys.stdin.buffer.readlines()
sys.stderr.write("")
print(len(lines), hashlib.sha256(b"".join(lines)).hexdigest())
sys.stdout.flush()
for line in lines[::-1]: sys.stdout.buffer.write(line)
' | tee /dev/fd/5 | gzip -1n | gzip -d | (cksum; cat) &
( trap 'echo told; exit 0' TERM; for i in $(seq 20); do /bin/echo -n "$i "; done > few; cat few )
wait $!
exec 5>&-
diff <(cksum < log.copy) <(cat log.copy | cksum)
head -n 1 log.copy
mapfile -t lines < <(head -n 20000 log.copy)
echo "${#lines[@]} ${#lines[19999]}"
"#;

#[test]
fn pipes_of_all_that() {
    let Some(bench) = Bench::with(&["bash", "sort", "gzip", "/usr/bin/python3"]) else { return };
    bench.file("input", |out| write_log(out, 120_000));
    bench.job(&["bash", "-c", SCRIPT]).compare(32 * MIB, 0);
}
