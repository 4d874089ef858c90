"""What tools/test prints last is true of the run, whichever way a target ends."""

import io
import json
import os
import tempfile
import unittest
from contextlib import redirect_stdout

from tools import count_tests


class CountTestsTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.events = []

    def target(self, label, status, cases=None, shard=1):
        """Records a target that ended with `status`; `cases` are the elements of its XML."""
        outputs = []
        if cases is not None:
            path = os.path.join(self.folder.name, f"{len(self.events)} x.xml")
            with open(path, "w", encoding="utf-8") as xml:
                xml.write("<testsuites><testsuite>" + "".join(cases) + "</testsuite></testsuites>")
            outputs = [{"name": "test.xml", "uri": "file://" + path.replace(" ", "%20")}]
        self.events.append({"id": {"testResult": {"label": label, "run": 1, "shard": shard}},
                            "testResult": {"status": status, "testActionOutput": outputs}})
        self.events.append({"id": {"testSummary": {"label": label}},
                            "testSummary": {"overallStatus": status}})

    def run_count(self, *args):
        path = os.path.join(self.folder.name, "events.json")
        with open(path, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(event) + "\n" for event in self.events)
        printed = io.StringIO()
        with redirect_stdout(printed):
            code = count_tests.main([*args, path])
        return code, printed.getvalue().splitlines()

    PASS = '<testcase name="Good" classname="A" status="run"/>'
    FAIL = '<testcase name="Bad" classname="A" status="run"><failure message="no"/></testcase>'
    SKIP = '<testcase name="Gpu" classname="A" status="run" result="skipped"><skipped/></testcase>'

    def test_counts_cases_not_targets(self):
        self.target("//a:t", "PASSED", [self.PASS, self.PASS])
        self.target("//b:t", "PASSED", [self.PASS])
        self.assertEqual(self.run_count(), (0, ["3 passed, 0 failed"]))

    def test_counts_every_shard(self):
        self.target("//a:t", "PASSED", [self.PASS], shard=1)
        self.target("//a:t", "PASSED", [self.PASS, self.PASS], shard=2)
        self.assertEqual(self.run_count()[1], ["3 passed, 0 failed"])

    def test_names_the_failed_case(self):
        self.target("//a:t", "FAILED", [self.PASS, self.FAIL])
        self.assertEqual(self.run_count(), (1, ["FAILED //a:t A.Bad", "1 passed, 1 failed"]))

    def test_a_crash_without_xml_is_one_failure(self):
        self.target("//a:t", "TIMEOUT")
        self.target("//b:t", "PASSED", [self.PASS])
        self.assertEqual(self.run_count(), (1, ["FAILED //a:t (timeout)", "1 passed, 1 failed"]))

    def test_a_target_that_did_not_build_is_one_failure(self):
        self.events.append({"id": {"testSummary": {"label": "//a:t"}}, "aborted": {}})
        self.assertEqual(self.run_count()[1], ["FAILED //a:t (no status)", "0 passed, 1 failed"])

    def test_skipped_cases_are_neither(self):
        self.target("//a:t", "PASSED", [self.PASS, self.SKIP])
        self.assertEqual(self.run_count()[1][-1], "1 passed, 0 failed")
        self.assertEqual(len(self.run_count()[1]), 2)

    def test_no_test_is_a_failure(self):
        self.assertEqual(self.run_count("--extra=layers:passed"), (1, ["1 passed, 0 failed"]))

    def test_bazels_own_failure_is_not_lost(self):
        self.target("//a:t", "PASSED", [self.PASS])
        code, lines = self.run_count("--bazel-status=1")
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed"))

    def test_an_extra_check_counts(self):
        self.target("//a:t", "PASSED", [self.PASS])
        self.assertEqual(self.run_count("--extra=layers:passed")[1], ["2 passed, 0 failed"])
        self.assertEqual(self.run_count("--extra=layers:failed")[0], 1)


if __name__ == "__main__":
    unittest.main()
