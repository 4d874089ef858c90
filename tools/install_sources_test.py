"""Tests of install_sources.py."""

import unittest

from tools import install_sources

_FILES = {
    "client/include/tessera/session.h": '#include "layout/dtype.h"\n#include "absl/status/status.h"\n',
    "client/c/tessera.h": "#include <stdint.h>\n",
    "layout/dtype.h": '#include "base/ids.h"\n',
    "base/ids.h": "#include <string>\n",
    "layout/shard_view.h": '#include "layout/dtype.h"\n',
    "client/torch/windows.cc": '#include "layout/shard_view.h"  // Rows.\n#include "tessera/session.h"\n',
    "job/codec.h": '#include "proto/types.pb.h"\n',
}


def _install(headers, sources):
    return install_sources.install(headers, sources, _FILES.__getitem__, _FILES.__contains__)


class InstallSources(unittest.TestCase):

    def test_what_public_headers_include_is_under_tessera(self):
        tree = _install(["client/include/tessera/session.h", "client/c/tessera.h"], [])
        self.assertEqual(tree, {
            "include/tessera.h": "#include <stdint.h>\n",
            "include/tessera/base/ids.h": "#include <string>\n",
            "include/tessera/layout/dtype.h": '#include "tessera/base/ids.h"\n',
            "include/tessera/session.h":
                '#include "tessera/layout/dtype.h"\n#include "absl/status/status.h"\n',
        })

    def test_sources_bring_what_is_not_public(self):
        tree = _install(["client/include/tessera/session.h"], ["client/torch/windows.cc"])
        self.assertEqual(tree["share/tessera/src/layout/shard_view.h"],
                         '#include "tessera/layout/dtype.h"\n')
        self.assertEqual(tree["share/tessera/src/client/torch/windows.cc"],
                         '#include "layout/shard_view.h"  // Rows.\n#include "tessera/session.h"\n')
        self.assertNotIn("share/tessera/src/layout/dtype.h", tree)

    def test_a_generated_header_is_refused_by_name(self):
        with self.assertRaisesRegex(ValueError, "job/codec.h includes proto/types.pb.h"):
            _install([], ["job/codec.h"])


if __name__ == "__main__":
    unittest.main()
