"""A tree of processes that share their parents' memory and have some of their own: fork_tree.py PROCESSES. Each checks both."""

import os
import sys
import time

PARENT = bytes(range(256)) * (16 << 12)  # 16 MiB


def grow(count):
    """Forks `count` processes, each with half of the rest below it; returns when all have ended well."""
    children = []
    while count > 0:
        below = (count - 1) // 2
        pid = os.fork()
        if pid == 0:
            own = bytearray(os.urandom(256) * 4096)  # 1 MiB
            grow(below)
            time.sleep(0.5)
            assert own[:256] * 4096 == own and PARENT[-256:] == bytes(range(256))
            os._exit(0)
        children.append(pid)
        count -= below + 1
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0


grow(int(sys.argv[1]))
print("ok")
