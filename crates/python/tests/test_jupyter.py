"""Notebooks and kernels, as Jupyter runs them. scripts/test-wheel.sh runs this."""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

DATA = tempfile.TemporaryDirectory()
# Before Jupyter looks for it.
os.environ["JUPYTER_DATA_DIR"] = DATA.name

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError


def outputs_of(*cells):
    """What the cells of a notebook print."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    texts = [output.get("text", "") for cell in notebook.cells for output in cell.outputs]
    return "".join(texts)


class Magic(unittest.TestCase):
    def test_cells_with_the_same_words_share_a_limit(self):
        cell = "%%overspill 8M --swap ram:64M\nimport numpy\narrays = arrays + [numpy.ones(2 << 20)]"
        said = outputs_of("%load_ext overspill\narrays = []", cell, cell, "%overspill\nprint(sum(a.sum() for a in arrays))")
        self.assertEqual(said.count("<overspill.limit of 8_388_608 bytes"), 1, said)
        self.assertNotIn(" 0 pages out", said)
        self.assertIn("4194304.0", said)

    def test_what_is_wrong_is_an_error_of_the_cell(self):
        with self.assertRaises(CellExecutionError) as raised:
            outputs_of("%load_ext overspill", "%%overspill --swop\n1")
        self.assertIn("write %%overspill 2G", str(raised.exception))
        with self.assertRaises(CellExecutionError) as raised:
            outputs_of("%load_ext overspill", "%%overspill 8M --swap ram:64M\n1 / 0")
        self.assertIn("ZeroDivisionError", str(raised.exception))


class Kernel(unittest.TestCase):
    def setUp(self):
        install = [sys.executable, "-m", "overspill.jupyter", "--memory", "48M", "--swap", "ram:256M", "--name", "limited"]
        where = subprocess.run(install, check=True, capture_output=True, text=True).stdout.strip()
        self.assertTrue((Path(where) / "kernel.json").exists(), where)
        self.kernel = KernelManager(kernel_name="limited")
        self.kernel.start_kernel()
        self.client = self.kernel.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def tearDown(self):
        self.client.stop_channels()
        self.kernel.shutdown_kernel()

    def printed(self, code):
        parts = []
        hook = lambda message: parts.append(message["content"].get("text", ""))
        reply = self.client.execute_interactive(code, timeout=120, output_hook=hook)
        return reply["content"]["status"], "".join(parts)

    def test_its_memory_is_in_the_limit(self):
        fill = "data = bytearray(120 << 20)\nfor at in range(0, len(data), 4096): data[at] = 1\nprint(sum(data[::4096]))"
        self.assertEqual(self.printed(fill), ("ok", f"{120 << 8}\n"))
        rss = "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('RssAnon')][0])"
        status, kib = self.printed(rss)
        self.assertLess(int(kib), 60 << 10)

    def test_it_is_interrupted_and_goes_on(self):
        message = self.client.execute("import time\nprint('begun')\ntime.sleep(100)")
        while self.client.get_iopub_msg(timeout=60)["content"].get("text") != "begun\n":
            pass
        begun = time.monotonic()
        self.kernel.interrupt_kernel()
        while (reply := self.client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != message:
            pass
        self.assertEqual(reply["content"].get("ename"), "KeyboardInterrupt")
        self.assertLess(time.monotonic() - begun, 30)
        self.assertEqual(self.printed("print(6 * 7)"), ("ok", "42\n"))


if __name__ == "__main__":
    unittest.main()
