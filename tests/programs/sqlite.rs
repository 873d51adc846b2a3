//! sqlite3: a database in memory.

use overspill_programs::bench::Bench;
use overspill_programs::job::MIB;

/// Creates, indexes, updates and aggregates about 190 MiB. Sorting by the long column, or checking
/// the index row by row, would visit all of it in random order and cost a disk access per row.
const SCRIPT: &str = "
PRAGMA temp_store = MEMORY;
CREATE TABLE item (id INTEGER PRIMARY KEY, number INTEGER, name TEXT);
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 259999)
    INSERT INTO item SELECT i, i * 7919 % 1000003, printf('%0600d', i * 104729 % 999983) FROM n;
SELECT number % 97 AS class, count(*), sum(id), max(number) FROM item GROUP BY class ORDER BY class;
SELECT count(*), sum(length(name)), min(name), max(name) FROM item;
CREATE INDEX by_number ON item (number);
SELECT count(*), sum(id) FROM item WHERE number BETWEEN 250000 AND 500000;
SELECT number, id, substr(name, 590) FROM item ORDER BY number LIMIT 1000 OFFSET 5000;
UPDATE item SET name = name || 'x' WHERE id % 10 = 3;
DELETE FROM item WHERE id % 16 = 5;
SELECT count(*), sum(length(name)), sum(number) FROM item;
PRAGMA quick_check;
";

#[test]
fn creates_indexes_and_aggregates_in_memory() {
    let Some(bench) = Bench::with(&["sqlite3"]) else { return };
    let script = bench.file("script", |out| out.write_all(SCRIPT.as_bytes()).unwrap());
    let ended = bench.job(&["sqlite3", ":memory:"]).input(script).compare(48 * MIB, 0);
    assert!(ended.text().ends_with("ok\n"), "{ended}");
}
