"""The package as a user has it: installed from the wheel. scripts/test-wheel.sh runs this."""

import doctest
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import overspill

PAGE = 4096
LIMIT = "8M"


def small(memory=LIMIT):
    return overspill.limit(memory, swap="ram:128M")


def resident_bytes():
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no Rss")


def sum_of(seed):
    """For a pool of processes: at top level, so that it can be sent."""
    with small() as limit:
        array = np.arange(seed, seed + (4 << 20), dtype=np.int64)
    return int(array.sum()), limit.stats()["pages_out"]


class Sizes(unittest.TestCase):
    def test_what_is_no_size_is_said(self):
        for wrong in (None, 3.5, -1, [8]):
            with self.assertRaisesRegex(TypeError, "a size is a number of bytes, or words"):
                overspill.limit(wrong, swap="ram:16M")
        for wrong, why in (("8Q", "bad size `8Q`"), ("0%", "bad percentage `0%`")):
            with self.assertRaisesRegex(overspill.Error, why):
                overspill.limit(wrong, swap="ram:16M")

    def test_a_limit_shows_itself(self):
        part = overspill.limit("1%", swap="ram:16M")
        self.assertGreater(part.stats()["memory_bytes"], 4 << 20)
        self.assertEqual(repr(small()), "<overspill.limit of 8_388_608 bytes, 0 pages out, swap: ram>")
        self.assertRegex(overspill.__version__, r"^\d+\.\d+")


class Arrays(unittest.TestCase):
    def test_four_times_the_limit_keeps_every_number(self):
        with small() as limit:
            array = np.arange(4 << 20, dtype=np.int64)
        self.assertEqual(array.nbytes, 32 << 20)
        before = resident_bytes()
        array *= 3
        array[::2] += 1
        self.assertTrue((array[1::2] % 3 == 0).all())
        self.assertTrue((array[::2] % 3 == 1).all())
        expected = np.arange(4 << 20, dtype=np.int64) * 3
        expected[::2] += 1
        self.assertTrue((array == expected).all())
        stats = limit.stats()
        self.assertGreater(stats["pages_out"], 6000)
        self.assertEqual(stats["pages_lost"], 0)
        del expected
        self.assertLess(resident_bytes() - before, 24 << 20)

    def test_what_is_made_outside_a_block_is_not_limited(self):
        limit = small()
        with limit:
            inside = np.zeros(1 << 20)
        outside = np.zeros(1 << 20)
        overspill.advise(inside, "cold")
        with self.assertRaisesRegex(overspill.Error, "not in memory of Overspill"):
            overspill.advise(outside, "cold")

    def test_blocks_nest_and_the_limit_outlives_its_name(self):
        with small() as outer, small():
            inner = np.ones(1 << 20)
            with outer:
                in_outer = np.ones(1 << 20)
        del outer
        self.assertEqual(inner.sum() + in_outer.sum(), 2 << 20)

    def test_shapes_types_orders_and_values(self):
        limit = small()
        self.assertEqual(overspill.zeros((3, 1 << 17), "u2", limit=limit).sum(), 0)
        full = overspill.full((1000, 200), 2.5, order="F", limit=limit)
        self.assertTrue(full.flags.f_contiguous and (full == 2.5).all())
        with limit:
            empty = overspill.empty(1 << 16, "c16")
            empty[:] = 1j
            tiny = overspill.zeros(3)
        self.assertEqual(empty.sum(), (1 << 16) * 1j)
        self.assertEqual(tiny.sum(), 0)
        with self.assertRaisesRegex(overspill.Error, "no limit is open"):
            overspill.zeros(10)

    def test_arrays_grow_shrink_and_pass_through_ufuncs(self):
        with small():
            array = np.arange(1 << 18)
            array.resize(1 << 20, refcheck=False)
            self.assertEqual(array.sum(), (1 << 18) * ((1 << 18) - 1) // 2)
            array.resize(10, refcheck=False)
            self.assertEqual(array.tolist(), list(range(10)))
            matrix = np.random.default_rng(1).random((600, 600))
            inverse = np.linalg.inv(matrix)
            ordered = np.sort(matrix, axis=None)
            joined = np.concatenate([matrix, inverse])
        self.assertTrue(np.allclose(matrix @ inverse, np.eye(600)))
        self.assertTrue((np.diff(ordered) >= 0).all())
        self.assertEqual(joined.shape, (1200, 600))

    def test_dlpack_buffers_and_pickles(self):
        import pickle

        with small():
            array = np.arange(1 << 20)
        self.assertTrue((np.from_dlpack(array) == array).all())
        self.assertEqual(memoryview(array)[7], 7)
        self.assertTrue((pickle.loads(pickle.dumps(array)) == array).all())

    def test_memory_is_given_back(self):
        limit = overspill.limit(LIMIT, swap="ram:48M")
        for _ in range(20):
            with limit:
                array = np.ones(4 << 20)
            self.assertEqual(array[-1], 1)
            del array
        self.assertLess(limit.swaps()[0]["used_bytes"], 4 << 20)

    def test_threads_have_blocks_of_their_own(self):
        limit, sums, limited = small(), [], []

        def work(n):
            plain = np.zeros(1 << 17)
            try:
                overspill.advise(plain, "cold")
                limited.append(n)
            except overspill.Error:
                pass
            with limit:
                sums.append(int(np.full(1 << 19, n).sum()))

        with limit:
            threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        self.assertEqual(sorted(sums), [n << 19 for n in range(8)])
        self.assertEqual(limited, [])

    def test_more_than_there_is_swap_for_is_a_memory_error_not_a_crash(self):
        limit = small()
        with self.assertRaises(MemoryError), limit:
            np.empty(1 << 60, "u1")
        with self.assertRaises(MemoryError), limit:
            np.ones(200 << 20, "u1")
        with limit:
            self.assertEqual(np.zeros(200 << 20, "u1")[::PAGE].sum(), 0)

    def test_out_of_swap_is_said_before_the_signal(self):
        ended = subprocess.run(
            [sys.executable, "-c", "import numpy, overspill\nwith overspill.limit('8M', swap='ram:8M'): numpy.zeros(8 << 20).fill(1)"],
            capture_output=True, text=True, check=False)
        self.assertIn(ended.returncode, (-signal.SIGBUS, -signal.SIGSEGV))
        self.assertIn("overspill: out of memory: the limit of 8 MiB is full, and ram is full", ended.stderr)

    @unittest.skipUnless(find_spec("pandas"), "pandas is not installed")
    def test_pandas_on_top(self):
        import pandas as pd

        rng = np.random.default_rng(7)
        keys, values = rng.integers(0, 100, 1 << 20), rng.random(1 << 20)
        expected = pd.DataFrame({"key": keys, "value": values}).groupby("key")["value"].sum()
        with small() as limit:
            frame = pd.DataFrame({"key": keys.copy(), "value": values.copy()})
            sums = frame.groupby("key")["value"].sum()
        self.assertTrue(np.allclose(sums, expected))
        self.assertGreater(limit.stats()["pages_out"], 1000)

    @unittest.skipUnless(find_spec("sklearn"), "scikit-learn is not installed")
    def test_scikit_learn_on_top(self):
        from sklearn.linear_model import LinearRegression

        rng = np.random.default_rng(7)
        with small() as limit:
            samples = rng.random((200_000, 8))
            model = LinearRegression().fit(samples, samples @ np.arange(8))
        self.assertTrue(np.allclose(model.coef_, np.arange(8)))
        self.assertGreater(limit.stats()["pages_out"], 1000)


class Files(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = Path(self.directory.name) / "numbers"

    def test_raw_and_npy_files_come_into_limited_memory(self):
        numbers = np.arange(4 << 20, dtype=np.int64)
        numbers.tofile(self.path)
        np.save(self.path.with_suffix(".npy"), numbers.reshape(1024, -1))
        limit = small()
        raw = overspill.from_file(self.path, "i8", limit=limit)
        part = overspill.from_file(self.path, "i8", (2, 1 << 16), offset=80, limit=limit)
        saved = overspill.from_file(self.path.with_suffix(".npy"), limit=limit)
        self.assertTrue((raw == numbers).all())
        self.assertTrue((part.ravel() == numbers[10 : 10 + (1 << 17)]).all())
        self.assertTrue((saved == numbers.reshape(1024, -1)).all())
        for array in (raw, part, saved):
            overspill.advise(array, "normal")

    def test_what_goes_to_a_file_comes_back(self):
        with small():
            for numbers in (np.arange(4 << 20), np.ones((100, 2000), order="F"), np.zeros((0, 3)), np.arange(9)):
                overspill.to_file(numbers, self.path)
                back = overspill.from_file(self.path)
                self.assertEqual((back.dtype, back.shape), (numbers.dtype, numbers.shape))
                self.assertTrue((back == numbers).all())

    def test_system_calls_take_what_is_pinned(self):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            limit = small()
        self.assertEqual([warning.category for warning in said], [RuntimeWarning] * limit.needs_pins)
        with limit:
            numbers = np.arange(4 << 20)
        with open(self.path, "wb", buffering=0) as file:
            if limit.needs_pins:
                with self.assertRaisesRegex(OSError, "Bad address"):
                    file.write(numbers[: 1 << 16])
            for part in np.split(numbers, 16):
                with overspill.pin(part):
                    file.write(part)
        self.assertTrue((np.fromfile(self.path, numbers.dtype) == numbers).all())

    def test_a_file_that_is_too_short_is_an_error_in_words(self):
        self.path.write_bytes(b"x" * 1000)
        with self.assertRaisesRegex(overspill.Error, "has 900 bytes from 100 on, and the array 1000"):
            overspill.from_file(self.path, "u1", 1000, offset=100, limit=small())
        self.assertEqual(overspill.from_file(self.path, "u1", offset=2000, limit=small()).size, 0)
        with self.assertRaises(FileNotFoundError):
            overspill.from_file(self.path.with_name("none"), "u1", limit=small())

    def test_swap_goes_to_a_file_and_the_file_goes(self):
        with overspill.limit(LIMIT, swap=f"file:{self.directory.name}") as limit:
            array = np.arange(4 << 20)
        self.assertEqual(int(array[::4096].sum()), sum(range(0, 4 << 20, 4096)))
        self.assertEqual(limit.swaps()[0]["kind"], "file")
        del array, limit
        self.assertEqual(os.listdir(self.directory.name), [])

    def test_swap_areas_come_and_go(self):
        limit = overspill.limit(LIMIT, swap="ram:64M")
        with limit:
            array = np.arange(4 << 20)
        limit.swapon(f"file:{self.path}:64M")
        limit.swapoff("ram")
        self.assertEqual([swap["name"] for swap in limit.swaps()], [str(self.path)])
        self.assertTrue((array == np.arange(4 << 20)).all())
        with self.assertRaisesRegex(overspill.Error, "no swap area is called `other`"):
            limit.swapoff("other")


class Hints(unittest.TestCase):
    def test_advice_is_taken(self):
        limit = small()
        array = overspill.full(1 << 18, 7, limit=limit)
        out = limit.stats()["pages_out"]
        overspill.advise(array, "pageout")
        self.assertEqual(limit.stats()["pages_out"] - out, array.nbytes // PAGE)
        overspill.advise(array[: 1 << 17], "willneed")
        overspill.advise(array[1 << 17 :], "discard")
        self.assertEqual(array.sum(), 7 << 17)
        with self.assertRaisesRegex(overspill.Error, "no advice `often`"):
            overspill.advise(array, "often")
        with self.assertRaisesRegex(overspill.Error, "contiguous"):
            overspill.advise(array[::2], "cold")

    def test_what_is_pinned_stays(self):
        limit = small()
        array = overspill.full(2 << 20, 1.0, limit=limit)
        with overspill.pin(array[: 1 << 17]):
            faults = limit.stats()["faults"]
            self.assertEqual(array[: 1 << 17].sum(), 1 << 17)
            self.assertEqual(limit.stats()["faults"], faults)
        with self.assertRaisesRegex(overspill.Error, "at most half of the memory limit"):
            overspill.pin(array)
        pinned = overspill.pin(array[:PAGE])
        del array
        pinned.release()
        pinned.release()

    def test_a_region_is_a_buffer(self):
        limit = small()
        region = limit.region("16M")
        view = memoryview(region)
        view[:5] = b"hello"
        self.assertEqual((len(view), view.readonly, bytes(view[:6])), (16 << 20, False, b"hello\0"))
        with open("/dev/zero", "rb", buffering=0) as zeros:
            zeros.readinto(view[:3])
        self.assertEqual(bytes(view[:5]), b"\0\0\0lo")
        del region
        self.assertEqual(view[4], ord("o"))


class Pools(unittest.TestCase):
    def test_pages_keep_what_was_written(self):
        pool = overspill.Pool("4M", swap="compressed:64M")
        for page in range(4096):
            with pool.write(page) as view:
                view[:8] = page.to_bytes(8, "little")
        pool.prefetch(range(64))
        for page in range(4096):
            with pool.read(page) as view:
                self.assertEqual(int.from_bytes(view[:8], "little"), page)
        pool.discard(0, 4096)
        with pool.read(5) as view:
            self.assertEqual(bytes(view), bytes(pool.page_size))
        self.assertGreater(pool.stats()["pages_out"], 2000)

    def test_a_page_that_is_read_is_read_only_and_views_end_with_it(self):
        pool = overspill.Pool("4M", swap="ram:16M")
        with pool.read(0) as view, self.assertRaises(TypeError):
            view[0] = 1
        with self.assertRaises(ValueError):
            view[0]
        with self.assertRaises(BufferError), pool.write(1) as view:
            array = np.frombuffer(view, "u1")
        self.assertEqual(array[0], 0)
        with self.assertRaisesRegex(overspill.Error, "page"):
            pool.read(len(pool))


class Mistakes(unittest.TestCase):
    def test_each_has_words(self):
        for words, make in [
            ("below the working minimum", lambda: overspill.limit("1M")),
            ("lots", lambda: overspill.limit("lots")),
            ("nowhere", lambda: overspill.limit("8M", swap="/nowhere/at/all")),
            ("power of two", lambda: overspill.limit("8M", page_size=5000)),
            ("swap areas were given", lambda: overspill.limit("8M", swap=["ram:8M"] * 40)),
        ]:
            with self.subTest(words), self.assertRaisesRegex(overspill.Error, words):
                make()
        with self.assertRaises((TypeError, overspill.Error)):
            overspill.limit(None)
        with self.assertRaises((TypeError, OverflowError)):
            overspill.limit(-1)


class Processes(unittest.TestCase):
    def test_a_child_of_fork_says_why_it_ends(self):
        with small():
            array = np.ones(1 << 20)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(write, 2)
            array[0] = 2
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as said:
            self.assertIn("made by fork", said.read())
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.WTERMSIG(status), signal.SIGSEGV)
        self.assertEqual(array.sum(), 1 << 20)

    def test_a_child_of_fork_may_do_anything_else(self):
        limit = small()
        with limit:
            array = np.ones(1 << 20)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    own = np.ones(1 << 20)
                    del array
                    with small():
                        limited = np.arange(4 << 20)
                    refused = False
                    try:
                        limit.stats()
                    except overspill.Error as error:
                        refused = "spawn" in str(error)
                    del limit
                    status = 0 if refused and own.sum() == 1 << 20 and limited[-1] == (4 << 20) - 1 else 2
                finally:
                    os._exit(status)
        _, status = os.waitpid(child, 0)
        self.assertEqual(status, 0)
        self.assertEqual(array.sum(), 1 << 20)

    def test_pools_of_processes_that_spawn(self):
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            for seed, (total, pages_out) in enumerate(pool.map(sum_of, range(4))):
                count = 4 << 20
                self.assertEqual(total, count * (count - 1) // 2 + seed * count)
                self.assertGreater(pages_out, 0)

    def test_the_program_comes_along(self):
        code = "x = [str(n) * 10 for n in range(200_000)]; print(len(set(x)))"
        run = [sys.executable, "-m", "overspill", "run", "--memory", "16M", "--swap", "ram:256M", "--"]
        ended = subprocess.run([*run, sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stdout), (0, "200000\n"), ended.stderr)

    def test_the_examples_of_the_documentation(self):
        failed, tried = doctest.testmod(overspill)
        self.assertEqual(failed, 0)
        self.assertGreater(tried, 5)


if __name__ == "__main__":
    unittest.main()
