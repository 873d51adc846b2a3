# Sums and counts by group, over 8 million rows.
prepare() { :; }
work() {
    /usr/bin/python3 - <<'PYTHON'
import numpy as np
rng = np.random.default_rng(7)
rows = 8_000_000
keys = rng.integers(0, 100_000, rows)
values = rng.random(rows)
order = np.argsort(keys, kind="stable")
keys, values = keys[order], values[order]
starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
sums = np.add.reduceat(values, starts)
print(len(starts), f"{sums.max():.9f}")
PYTHON
}
