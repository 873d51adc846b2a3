# GNU sort of a log whose lines arrive up to ten thousand late: near one place at a time.
. ./lines.sh
prepare() { lines log 590000 >input; }
work() { LC_ALL=C sort -S 1G --parallel=2 -T . -o sorted input; sha256sum <sorted; }
