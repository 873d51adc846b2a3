# xz -9: the tables of its search take ten times as much as the input.
. ./lines.sh
prepare() { lines random 25000 >input; }
work() { xz -9 -T1 -c input >packed; sha256sum <packed; }
