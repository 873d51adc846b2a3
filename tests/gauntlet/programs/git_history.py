"""Writes a history for `git fast-import`: always the same 12000 commits to 200 files of some kilobytes."""

import random
import sys

COMMITS, FILES, LINES = 12000, 200, 600


def main():
    chance = random.Random(11)
    files = [[f"line {n} {chance.getrandbits(120):x}" for n in range(LINES)] for _ in range(FILES)]
    out = sys.stdout
    for number in range(COMMITS):
        which = number if number < FILES else chance.randrange(FILES)
        file = files[which]
        for _ in range(chance.randrange(1, 40)):
            file[chance.randrange(len(file))] = f"line {chance.randrange(100)} {chance.getrandbits(120):x}"
        if chance.random() < 0.1:
            file.insert(chance.randrange(len(file)), f"more {chance.getrandbits(400):x}")
        text = "\n".join(file) + "\n"
        message = f"commit {number}"
        out.write(f"commit refs/heads/main\ncommitter A <a@example.org> {1600000000 + number * 60} +0000\n"
                  f"data {len(message)}\n{message}\nM 100644 inline file{which}\ndata {len(text)}\n{text}\n")


if __name__ == "__main__":
    main()
