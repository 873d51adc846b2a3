#!/bin/sh
# Tests the wheel as its users have it: in a fresh virtual environment, with no compiler on PATH. Skips, with the reason, where
# there is no python3 of 3.11 or newer, or no network to get numpy from.
set -eu
cd "$(dirname "$0")/.."
skip() {
    echo "skipped: tests of the Python package: $1"
    exit 0
}
PYTHON=python3
# One that others may run too, to test as they.
[ -x /usr/bin/python3 ] && PYTHON=/usr/bin/python3
command -v $PYTHON >/dev/null || skip "there is no python3"
$PYTHON -c 'import sys; sys.exit(sys.version_info < (3, 11))' || skip "$($PYTHON --version) is older than 3.11"
$PYTHON -c 'import venv, ensurepip' 2>/dev/null || skip "there is no venv (apt-get install python3-venv)"

venv=target/wheel-test
rm -rf $venv
$PYTHON -m venv $venv
$venv/bin/pip install -q numpy nbclient ipykernel || skip "numpy and nbclient cannot be installed"
scripts/wheel.sh
$venv/bin/pip install -q --no-index target/wheels/*.whl
PATH=$PWD/$venv/bin
tests="python crates/python/tests/test_overspill.py"
$tests
python crates/python/tests/test_jupyter.py
python crates/python/tests/run_tutorial.py docs/tutorial.ipynb
# As those who have no userfaultfd for system calls, and those who have none at all.
[ "$(/usr/bin/id -u)" = 0 ] || exit 0
/usr/bin/setpriv --reuid 65534 --regid 65534 --clear-groups $tests
container=tests/programs/container
if python $container/docker_seccomp.py --uid 65534 $container/default.json /bin/true; then
    python $container/docker_seccomp.py --uid 65534 $container/default.json $tests
else
    echo "skipped: the Python package in Docker's profile"
fi
