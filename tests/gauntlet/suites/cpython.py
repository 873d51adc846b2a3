"""CPython's own regression tests, as Debian packages them, each module a step."""

import xml.etree.ElementTree as xml

from debian import output
from harness import Step

PACKAGES = ["python3.11", "libpython3.11-testsuite"]
WHAT = "modules of `python3.11 -m test`"
MODULES = """
test_array test_asyncio test_bytes test_bz2 test_collections test_concurrent_futures test_ctypes test_decimal
test_deque test_dict test_exceptions test_faulthandler test_fcntl test_fork1 test_functools test_gc test_generators
test_hashlib test_io test_json test_list test_long test_lzma test_marshal test_memoryview test_mmap
test_multiprocessing_fork test_multiprocessing_forkserver test_multiprocessing_spawn test_openpty test_os test_pickle
test_poll test_popen test_posix test_pty test_queue test_re test_regrtest test_resource test_select test_selectors
test_set test_shutil test_signal test_socket test_socketserver test_sort test_sqlite3 test_struct test_subprocess
test_sys test_sys_setprofile test_tempfile test_thread test_threadedtempfile test_threading test_threading_local
test_threadsignals test_tracemalloc test_unicode test_venv test_wait3 test_wait4 test_weakref test_xml_etree_c
test_zipfile test_zlib
""".split()
# Waits for ever on a machine whose kernel has vsock and whose hypervisor has not.
IGNORED = "*VSOCKSocketStreamTest*"
QUICK = {"test_bytes", "test_mmap", "test_os", "test_posix", "test_threading"}


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "python3.11")


def outcome(case):
    for kind, word in (("skipped", "skipped"), ("failure", "failed"), ("error", "error")):
        if case.find(kind) is not None:
            return word
    return "passed"


def read(finished):
    path = finished.directory / "results.xml"
    if not path.exists():
        return {}
    cases = {f"{case.get('classname', '')}.{case.get('name')}".removeprefix("."): outcome(case)
             for case in xml.parse(path).iter("testcase")}
    path.unlink()
    return cases


def steps(tree):
    for module in MODULES:
        yield Step(
            module, ["python3.11", "-m", "test", "--timeout", "880", "--junit-xml", "results.xml", "-i", IGNORED, module],
            timeout=900, read=read, quick=module in QUICK)
