//! gcc, on a program of about 14 MB.

use crate::random::Random;
use overspill_programs::bench::Bench;
use overspill_programs::job::MIB;
use std::io::Write;

const TABLES: u64 = 240;
const ROWS: u64 = 900;
const FUNCTIONS: u64 = 300;

/// cc1's own text and read-only data, which are file pages: 28 MiB of them are touched.
const UNMANAGED: u64 = 32 * MIB;

fn write_program(out: &mut dyn Write) {
    let mut random = Random::new(1);
    writeln!(out, "struct row {{ int number; const char *name; double weight; }};").unwrap();
    for table in 0..TABLES {
        writeln!(out, "const struct row table{table}[] = {{").unwrap();
        for _ in 0..ROWS {
            let (number, name, weight) = (random.below(1 << 31), random.next(), random.below(1000));
            writeln!(out, "{{ {number}, \"row {name:x} of {table}\", {weight}.{number} }},")
                .unwrap();
        }
        writeln!(out, "}};").unwrap();
    }
    for function in 0..FUNCTIONS {
        let [a, b, c] = [(); 3].map(|()| random.below(100) + 2);
        writeln!(
            out,
            "int f{function}(int x, int *p) {{
                int r = x * {a};
                for (int j = 0; j < {b}; j++) {{
                    r += table{}[(x + j) % 30].number * p[j];
                    if (r % {c} == 3) r -= {a};
                    switch (r % 9) {{ case 1: r++; break; case 4: r -= x; break; case 7: p[0] = r; }}
                }}
                return r;
            }}",
            function % TABLES
        )
        .unwrap();
    }
}

#[test]
fn compiles_a_large_program() {
    let Some(bench) = Bench::with(&["gcc"]) else { return };
    bench.file("large.c", |out| write_program(out));
    let words = ["gcc", "-O1", "-c", "large.c", "-o", "/dev/stdout"];
    bench.job(&words).compare(64 * MIB, UNMANAGED);
}
