# gcc -O2 compiles SQLite: 250 000 lines in one file.
prepare() { cp "$SQLITE/sqlite3.c" .; }
work() {
    gcc -O2 -c sqlite3.c -o sqlite3.o
    objcopy -O binary -j .text sqlite3.o text
    sha256sum text
}
