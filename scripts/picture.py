#!/usr/bin/env python3
"""Runs a command on a terminal of its own and draws what it shows at the end, as SVG.

    scripts/picture.py docs/img/demo.svg "make demo" scripts/demo.sh

The words after the file are what stands behind the prompt, and the command that is run. Needs nothing
but Python. Understood of a terminal's language is what the demo uses: carriage return, and erasing a line.
"""

import html
import os
import pty
import sys

COLUMNS, ROWS = 112, 40
CELL, LINE, MARGIN, BAR = 8.4, 20, 20, 36  # pixels; 14 px monospace
STYLE = """\
  text { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 14px;
         fill: #d8dee9; white-space: pre; }
  .prompt { fill: #8fbf7f; font-weight: bold; }
  .typed { fill: #ffffff; font-weight: bold; }"""


def run(command):
    """What the command writes to a terminal, while it is shown on ours."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.execvp(command[0], command)
    written = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        written += piece
        sys.stderr.buffer.write(piece)
        sys.stderr.flush()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        sys.exit(f"{command[0]} ended with status {status}")
    return written.decode()


def screen(written):
    """The lines that are left when everything is written."""
    lines = []
    for line in written.replace("\r\n", "\n").rstrip("\n").split("\n"):
        shown = ""
        for piece in line.split("\r"):
            erases = piece.startswith("\033[K")
            piece = piece.removeprefix("\033[K")
            shown = piece if erases else piece + shown[len(piece):]
        lines.append(shown.rstrip())
    return lines


def text(x, line, words, kind=""):
    y = BAR + MARGIN + line * LINE
    width = f' textLength="{len(words) * CELL:.1f}"' if words.strip() else ""
    return f'<text{kind} x="{x:.1f}" y="{y}"{width} xml:space="preserve">{html.escape(words)}</text>'


def draw(typed, lines):
    columns = max(len(line) for line in [*lines, "$ " + typed])
    width = round(columns * CELL + 2 * MARGIN)
    height = BAR + MARGIN + (len(lines) + 1) * LINE
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
           f'height="{height}" role="img" aria-label="What {html.escape(typed)} prints">')
    yield f"<style>\n{STYLE}\n</style>"
    yield f'<rect width="{width}" height="{height}" rx="10" fill="#23272e"/>'
    yield f'<path d="M0,{BAR} V10 Q0,0 10,0 H{width - 10} Q{width},0 {width},10 V{BAR} z" fill="#343a44"/>'
    for n, colour in enumerate(["#e0655c", "#dfb24c", "#66b35b"]):
        yield f'<circle cx="{22 + 20 * n}" cy="{BAR // 2}" r="6" fill="{colour}"/>'
    yield text(MARGIN, 0.2, "$", ' class="prompt"')
    yield text(MARGIN + 2 * CELL, 0.2, typed, ' class="typed"')
    for n, line in enumerate(lines, 1):
        if not line:
            continue
        indent = len(line) - len(line.lstrip())
        yield text(MARGIN + indent * CELL, n + 0.2, line.lstrip())
    yield "</svg>"


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    path, typed, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    picture = "\n".join(draw(typed, screen(run(command)))) + "\n"
    with open(path, "w", encoding="utf-8") as file:
        file.write(picture)


main()
