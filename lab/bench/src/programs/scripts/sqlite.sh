# speedtest1, of SQLite's own tests, on a database in memory.
prepare() { cc -O2 -o speedtest1 "$SQLITE/test/speedtest1.c" -lsqlite3; }
work() { ./speedtest1 --memdb --verify --size 150 >times; grep Hash times; }
