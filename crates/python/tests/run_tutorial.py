"""Runs a notebook from the first cell to the last, in an empty directory; the first error of a cell ends it."""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
with tempfile.TemporaryDirectory() as directory:
    resources = {"metadata": {"path": directory}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
print(f"{Path(sys.argv[1]).name}: {len(cells)} cells run")
