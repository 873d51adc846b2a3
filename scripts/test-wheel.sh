#!/bin/sh
# Tests the wheel as its users have it: in a fresh virtual environment, with no compiler on PATH. Skips, with the reason, where
# there is no python3 of 3.11 or newer, or no network to get numpy from.
set -eu
cd "$(dirname "$0")/.."
skip() {
    echo "skipped: tests of the Python package: $1"
    exit 0
}
command -v python3 >/dev/null || skip "there is no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || skip "$(python3 --version) is older than 3.11"
python3 -c 'import venv, ensurepip' 2>/dev/null || skip "there is no venv (apt-get install python3-venv)"

venv=target/wheel-test
rm -rf $venv
python3 -m venv $venv
$venv/bin/pip install -q numpy nbclient ipykernel || skip "numpy and nbclient cannot be installed"
scripts/wheel.sh
$venv/bin/pip install -q --no-index target/wheels/*.whl
PATH=$PWD/$venv/bin $venv/bin/python crates/python/tests/test_overspill.py
PATH=$PWD/$venv/bin $venv/bin/python crates/python/tests/run_tutorial.py docs/tutorial.ipynb
