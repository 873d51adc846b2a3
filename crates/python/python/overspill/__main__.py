"""`python -m overspill` is the program `overspill`: `python -m overspill run --memory 1G -- program`."""

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).with_name("bin") / "overspill"
    try:
        os.execv(program, ["overspill", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"overspill: cannot start {program}, which comes with this package: {error.strerror}")


if __name__ == "__main__":
    main()
