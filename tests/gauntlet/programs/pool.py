"""A pool of processes, each of which sorts some MiB: pool.py PROCESSES MIB. Checks the results."""

import multiprocessing
import random
import sys


def sort(seed):
    numbers = random.Random(seed)
    words = [numbers.random() for _ in range(int(sys.argv[2]) * 30_000)]
    words.sort()
    assert all(a <= b for a, b in zip(words, words[1:]))
    return len(words)


if __name__ == "__main__":
    with multiprocessing.Pool(int(sys.argv[1])) as pool:
        print(sum(pool.map(sort, range(3 * int(sys.argv[1])), chunksize=1)))
