# A product of matrices of 3072 x 3072 doubles, 72 MiB each, by blocks of 512.
prepare() { :; }
work() {
    OPENBLAS_NUM_THREADS=2 /usr/bin/python3 - <<'PYTHON'
import numpy as np
n, block = 3072, 512
rng = np.random.default_rng(7)
a = rng.integers(0, 9, (n, n)).astype(float)
b = rng.integers(0, 9, (n, n)).astype(float)
c = np.zeros((n, n))
for i in range(0, n, block):
    for j in range(0, n, block):
        for k in range(0, n, block):
            c[i:i+block, j:j+block] += a[i:i+block, k:k+block] @ b[k:k+block, j:j+block]
print(int(c.sum()), int(c[17, 1234]))
PYTHON
}
