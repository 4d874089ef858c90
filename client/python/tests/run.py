"""Runs the suites of this folder and writes what became of each test to $XML_OUTPUT_FILE."""

import os
import sys
import unittest
from xml.sax.saxutils import quoteattr


class Results(unittest.TextTestResult):
    """Remembers (name, kind, text) of each test; kind is "", "failure" or "skipped"."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.all = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.all.append((test.id(), "", ""))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.all.append((test.id(), "skipped", reason))

    def addError(self, test, err):
        super().addError(test, err)
        self.all.append((test.id(), "failure", self.errors[-1][1]))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.all.append((test.id(), "failure", self.failures[-1][1]))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.all.append((subtest.id(), "failure", str(err[1])))


def write_xml(path, results):
    kinds = [kind for _, kind, _ in results]
    with open(path, "w", encoding="utf-8") as out:
        out.write(f'<testsuites><testsuite name="python" tests="{len(results)}" '
                  f'failures="{kinds.count("failure")}" skipped="{kinds.count("skipped")}">\n')
        for name, kind, text in results:
            suite, _, case = name.rpartition(".")
            out.write(f"<testcase name={quoteattr(case)} classname={quoteattr(suite)}>")
            if kind:
                clean = "".join(c for c in text if c in "\n\t" or ord(c) >= 32)
                out.write(f"<{kind} message={quoteattr(clean)}/>")
            out.write("</testcase>\n")
        out.write("</testsuite></testsuites>\n")


def run_suite(suite):
    """Runs it, and says what came of it: to Bazel by test.xml, to the shell by the exit status."""
    result = unittest.TextTestRunner(verbosity=2, resultclass=Results).run(suite)
    if os.environ.get("XML_OUTPUT_FILE"):
        write_xml(os.environ["XML_OUTPUT_FILE"], result.all)
    return 0 if result.wasSuccessful() else 1


def main():
    xml = os.environ.get("XML_OUTPUT_FILE")
    try:
        import torch  # noqa: F401 pylint: disable=unused-import
    except ImportError as error:
        print(f"skipped: {error}; tools/setup --with-peers installs it")
        if xml:
            write_xml(xml, [("PythonSuite.Everything", "skipped", f"no PyTorch: {error}")])
        return 0
    return run_suite(unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
