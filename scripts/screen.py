#!/usr/bin/env python3
"""Runs a command on a terminal of 80 columns and 24 lines for a while, and draws what stands there then, as SVG.

    scripts/screen.py docs/img/top.svg 4 target/quick/overspill top

The words after the file are the seconds, and the command, which is ended afterwards. Takes pyte (pip install pyte).
"""

import html
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from fcntl import ioctl

import pyte

COLUMNS, ROWS = 80, 24
CELL, LINE, MARGIN = 8.4, 18, 12  # pixels; 14 px monospace
PLAIN, GROUND = "#d8dee9", "#23272e"
COLOURS = {
    "black": "#23272e", "red": "#e0655c", "green": "#66b35b", "brown": "#dfb24c", "blue": "#5b8fd6",
    "magenta": "#b57edc", "cyan": "#56b6c2", "white": "#d8dee9", "default": None,
}


def shown_after(seconds, command):
    """The screen, as pyte has it."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            stream.feed(os.read(terminal, 65536))
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    return screen


def colour(name):
    """By name, or by number; None for the terminal's own."""
    name = name.removeprefix("bright")
    return COLOURS[name] if name in COLOURS else f"#{name}"


def colours(cell):
    front, back = colour(cell.fg) or PLAIN, colour(cell.bg)
    return (back or GROUND, front) if cell.reverse else (front, back)


def draw(screen):
    width, height = round(COLUMNS * CELL + 2 * MARGIN), ROWS * LINE + 2 * MARGIN
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    yield "<style>text { font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; font-size: 14px; white-space: pre; }</style>"
    yield f'<rect width="{width}" height="{height}" rx="8" fill="{GROUND}"/>'
    for row in range(ROWS):
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            front, back = colours(cell)
            x, y = MARGIN + column * CELL, MARGIN + row * LINE
            if back:
                yield f'<rect x="{x:.1f}" y="{y}" width="{CELL + 0.2:.1f}" height="{LINE}" fill="{back}"/>'
            if cell.data.strip():
                weight = ' font-weight="bold"' if cell.bold else ""
                yield f'<text x="{x:.1f}" y="{y + 14}" fill="{front}"{weight}>{html.escape(cell.data)}</text>'
    yield "</svg>"


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    path, seconds, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(draw(shown_after(seconds, command))) + "\n")


main()
