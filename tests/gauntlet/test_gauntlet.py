"""Tests of the driver: `python3 -m unittest` in this directory."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import harness
import report
from suites import bash, perl, php, redis, stress_ng


def finished(text, directory="."):
    return harness.Finished(text, Path(directory))


class Readers(unittest.TestCase):
    def test_perl_counts_failures_that_are_no_exceptions(self):
        text = "1..4\nok 1 - a\nnot ok 2 - b\nnot ok 3 - c # TODO later\nok 4 # skip no\n"
        self.assertEqual(perl.read(finished(text)), {"tests": "failed: 4 tests, failed: 2"})

    def test_redis_remembers_a_failure(self):
        text = "[ok]: LPUSH works (3 ms)\n[err]: LPUSH works in tests/unit/type/list.tcl\n[ok]: LPUSH works (3 ms)\n"
        self.assertEqual(redis.read(finished(text)), {"LPUSH works": "failed"})

    def test_php_reads_and_removes_its_table(self):
        with tempfile.TemporaryDirectory() as directory:
            table = Path(directory) / "results"
            table.write_text("PASSED\tZend/tests/a.phpt\nFAILED\tZend/tests/b.phpt\n")
            self.assertEqual(php.read(finished("", directory)), {"Zend/tests/a.phpt": "passed", "Zend/tests/b.phpt": "failed"})
            self.assertFalse(table.exists())

    def test_stress_ng_fails_by_its_words(self):
        text = "stress-ng: fail:  [12] vm: detected 3 bit errors\n"
        self.assertEqual(stress_ng.read(finished(text)), {"verified": "failed: vm: detected 3 bit errors"})

    def test_bash_forgets_process_numbers(self):
        one, other = (bash.read(finished(f"cannot set terminal process group ({n})\n")) for n in (1, 22))
        self.assertEqual(one, other)


class Comparison(unittest.TestCase):
    def test_cases_not_reached_are_one_difference(self):
        plain = {"cases": {"end": "passed", "a": "passed", "b": "passed"}}
        self.assertEqual(report.differences_of_step("t", plain, {"cases": {"end": "timed out"}}),
                         [("t: end", "passed", "timed out"), ("t: a and 1 more", "passed", "not reached")])

    def test_a_step_that_was_not_run_is_a_difference(self):
        ran = {"cases": {"end": "passed"}}
        self.assertEqual(list(report.differences_of_way({"s": ran, "t": ran}, {"s": ran})), [("t", "run", "not run")])

    def test_an_explanation_names_suite_case_and_way(self):
        entry = {"suite": "bash", "case": "run-x", "way": "32M", "why": "because"}
        explained = report.Difference("bash", "32M, root, C", "run-x: end", "passed", "status 1")
        other = report.Difference("bash", "quarter, root, C", "run-x: end", "passed", "status 1")
        self.assertEqual([report.explain(one, [entry]) for one in (explained, other)], ["because", None])


class Processes(unittest.TestCase):
    def test_limit_is_a_quarter_of_the_peak_and_at_least_four(self):
        self.assertEqual([harness.limit_in_mib("quarter", kib) for kib in (1024, 400 * 1024)], [4, 100])

    def test_a_daemon_of_a_step_is_ended(self):
        harness.become_subreaper()
        started = subprocess.run(["sh", "-c", "setsid sleep 100 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True)
        self.assertGreater(harness.end_descendants(), 0)
        with self.assertRaises(ProcessLookupError):
            os.kill(int(started.stdout), 0)


if __name__ == "__main__":
    unittest.main()
