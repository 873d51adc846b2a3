"""Jupyter: cells in a memory limit, and kernels in one.

In a notebook, cells whose arrays are in a limit, the same one for the same words:

    %load_ext overspill
    %%overspill 2G --swap file:/mnt/fast

On the command line, a kernel of which the whole memory is in a limit, to be chosen like any other:

    python -m overspill.jupyter --memory 4G --swap file:/mnt/fast:20G
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from . import limit

#: The limits of cells, by the words that they were asked for with.
_limits: dict[tuple[str, tuple[str, ...]], limit] = {}


class _Parser(argparse.ArgumentParser):
    """One that says what is wrong, instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; write %%overspill 2G [--swap SPEC]...")


class _Failed(Exception):
    """What a cell has already shown, in a line: so that who runs a notebook hears of it."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def _limit_of(line: str) -> limit:
    parser = _Parser(prog="%%overspill", add_help=False)
    parser.add_argument("memory")
    parser.add_argument("--swap", action="append", default=[])
    words = parser.parse_args(shlex.split(line))
    key = (words.memory, tuple(words.swap))
    if key not in _limits:
        _limits[key] = limit(words.memory, swap=words.swap or None)
    return _limits[key]


def load(shell: Any) -> None:
    """Adds the magic to a shell of IPython."""

    def overspill(line: str, cell: str | None = None) -> None:
        """`%%overspill 2G` runs a cell whose arrays are in a limit; `%overspill` shows the limits."""
        if cell is None:
            for one in _limits.values():
                print(one)
            return
        with _limit_of(line):
            result = shell.run_cell(cell)
        if error := result.error_before_exec or result.error_in_exec:
            raise _Failed(f"{type(error).__name__}: {error}")

    shell.register_magic_function(overspill, magic_kind="line_cell", magic_name="overspill")


def _install(words: argparse.Namespace) -> str:
    """Installs the kernel; returns the directory that Jupyter reads it from."""
    from jupyter_client.kernelspec import KernelSpecManager

    swap = [word for spec in words.swap for word in ("--swap", spec)]
    run = ["-m", "overspill", "run", "--quiet", "--memory", words.memory, *swap, "--"]
    kernel = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {
        "argv": [sys.executable, *run, *kernel],
        "display_name": words.display_name or f"Python 3 in {words.memory}",
        "language": "python",
        "metadata": {"debugger": True},
    }
    with tempfile.TemporaryDirectory() as parent:
        # Its mode is kept: others are to read it, too.
        directory = Path(parent) / "kernel"
        directory.mkdir()
        (directory / "kernel.json").write_text(json.dumps(spec, indent=1))
        where = {"prefix": sys.prefix} if words.sys_prefix else {"user": True}
        return KernelSpecManager().install_kernel_spec(str(directory), words.name, **where)


def main() -> None:
    """Installs a kernel, as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m overspill.jupyter", description="Install a Jupyter kernel whose memory is in a limit."
    )
    parser.add_argument("--memory", required=True, help="the limit, as of `overspill run`: 4G or 25%%")
    parser.add_argument("--swap", action="append", default=[], help="where to swap, as of `overspill run`; may be repeated")
    parser.add_argument("--name", default="overspill", help="how Jupyter calls it [default: overspill]")
    parser.add_argument("--display-name", help="how Jupyter shows it")
    parser.add_argument("--sys-prefix", action="store_true", help="in this environment, not for this user")
    print(_install(parser.parse_args()))


if __name__ == "__main__":
    main()
