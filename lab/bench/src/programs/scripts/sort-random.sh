# The same lines in random order: sorting visits all of memory.
. ./lines.sh
prepare() { lines random 590000 >input; }
work() { LC_ALL=C sort -S 1G --parallel=2 -T . -o sorted input; sha256sum <sorted; }
