# Python: a dictionary of a million objects, built, walked twice and dropped.
prepare() { :; }
work() {
    PYTHONHASHSEED=0 /usr/bin/python3 - <<'PYTHON'
table = {f"key {n * 7919 % 1_000_003}": [n, str(n)] for n in range(600_000)}
print(len(table), sum(value[0] for value in table.values()))
print(sum(len(value[1]) for key, value in sorted(table.items())[::3]))
PYTHON
}
