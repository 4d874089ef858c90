"""cc_library, cc_binary and cc_test by this tree's conventions.

    load("//tools:tessera.bzl", "cluster_test", "tessera_binary", "tessera_library", "tessera_test")
    tessera_library(name = "shard_map", deps = ["//layout:dtype"])
    tessera_test(name = "shard_map_test", deps = [":shard_map"])
    cluster_test(name = "reshard_test", deps = ["//shm:region"])

What is not said follows from the name: the sources of `name` are name.cc, name.h or both. Every
library depends on Abseil and the status macros, every test on GoogleTest and the status matchers
as well, and a cluster_test on what a test needs that trains on a cluster in its own process.
`torch = True` compiles against libtorch.

Test code is compiled to be compiled fast, except where it measures or computes at length.
"""

load("//third_party:test_copts.bzl", "TEST_COPTS")
load("//third_party:torch.bzl", "TORCH_COPTS")

_COMPUTING_PACKAGES = [
    "tests/bench",
    "tests/demo",
    "tests/example",
    "tests/gpu",
    "tests/numerics",
    "tests/real_model",
]

_LIBRARY_DEPS = ["//base:status_macros", "//third_party:absl"]
_TEST_DEPS = ["//base:status_matchers", "//third_party:gtest_main"]
_TORCH_DEPS = ["//client/include:tessera_torch", "//third_party:torch"]
_CLUSTER_DEPS = [
    "//client/include:tessera",
    "//client/session:local_cluster",
    "//client/session",
    "//tests/testing:toy_training",
    "//tests/testing:trainer_team",
]

def _is_test_code(testonly):
    package = native.package_name()
    return package not in _COMPUTING_PACKAGES and (testonly or package.startswith("tests/"))

def _precompiled_header(copts, deps, torch, is_test_code):
    """Returns the name of the header of third_party that the sources begin with, or None."""
    if torch:
        return "torch_test_pch" if is_test_code else "torch_pch"
    if copts:
        return None  # It was compiled with other flags.
    if is_test_code:
        return "test_pch"
    return "cli_pch" if "//third_party:cli11" in deps else "base_pch"

def _flags(copts, deps, torch, is_test_code):
    """Returns all copts, and the deps beside those that are named."""
    all_copts = copts + (TORCH_COPTS if torch else []) + (TEST_COPTS if is_test_code else [])
    header = _precompiled_header(copts, deps, torch, is_test_code)
    if not header:
        return all_copts, []
    return all_copts + select({
        "//third_party:without_precompiled_headers": [],
        "//conditions:default": ["-include", "third_party/%s.h" % header, "-Winvalid-pch"],
    }), select({
        "//third_party:without_precompiled_headers": [],
        "//conditions:default": ["//third_party:" + header],
    })

def _all_of(deps, more, name):
    """Returns `deps` and those of `more` that are not among them, without the target itself."""
    package = "//%s:" % native.package_name()
    known = [package + dep[1:] if dep.startswith(":") else dep for dep in deps] + [package + name]
    return deps + [dep for dep in more if dep not in known]

def tessera_library(name, srcs = None, hdrs = None, deps = [], copts = [], torch = False, testonly = None, **kwargs):
    """A cc_library: name.cc and name.h where `srcs` and `hdrs` say nothing else."""
    all_copts, more_deps = _flags(copts, deps, torch, _is_test_code(testonly))
    more = _LIBRARY_DEPS + (_TORCH_DEPS if torch else [])
    native.cc_library(
        name = name,
        srcs = native.glob([name + ".cc"]) if srcs == None else srcs,
        hdrs = native.glob([name + ".h"]) if hdrs == None else hdrs,
        copts = all_copts,
        deps = _all_of(deps, more, name) + more_deps,
        testonly = testonly,
        **kwargs
    )

def tessera_binary(name, srcs, deps = [], copts = [], torch = False, testonly = None, **kwargs):
    """A cc_binary."""
    all_copts, more_deps = _flags(copts, deps, torch, _is_test_code(testonly))
    more = _LIBRARY_DEPS + (_TORCH_DEPS if torch else [])
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = all_copts,
        deps = _all_of(deps, more, name) + more_deps,
        testonly = testonly,
        **kwargs
    )

def tessera_test(name, size = "small", srcs = None, deps = [], copts = [], tags = [], torch = False, **kwargs):
    """A cc_test of name.cc where `srcs` says nothing else."""
    all_copts, more_deps = _flags(copts, deps, torch, _is_test_code(True))
    more = _TEST_DEPS + _LIBRARY_DEPS + (_TORCH_DEPS if torch else [])
    native.cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"] if srcs == None else srcs,
        copts = all_copts,
        tags = tags + (["torch"] if torch else []),
        deps = _all_of(deps, more, name) + more_deps,
        **kwargs
    )

def cluster_test(name, size = "medium", deps = [], **kwargs):
    """A test of medium size that trains on a cluster."""
    tessera_test(name = name, size = size, deps = _all_of(deps, _CLUSTER_DEPS, name), **kwargs)
