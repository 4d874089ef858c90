"""What counts as one of the project's sources."""

import unittest

from tools import source_tree


class SourceTreeTest(unittest.TestCase):

    def test_only_the_projects_own_sources_are_read(self):
        self.assertTrue(source_tree.SOURCE.match("worker/device/cuda/kernels.cu"))
        self.assertFalse(source_tree.SOURCE.match("third_party/rules_cc/a.h"))
        self.assertFalse(source_tree.SOURCE.match("base/BUILD.bazel"))


if __name__ == "__main__":
    unittest.main()
