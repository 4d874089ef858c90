"""The arrows of ARCHITECTURE.md as rules over #include lines, and what no source may call. Pure: text
in, violations out.

A rule says which includes are forbidden in which files. Paths are relative to the repository's
root. Bazel's visibility keeps the same arrows between targets; this also catches headers of system
libraries, which lie on the compiler's own search path and need no dependency to be found.
"""

import collections
import re

Rule = collections.namedtuple("Rule", ["where", "unless", "forbidden", "reason"])
Violation = collections.namedtuple("Violation", ["path", "line", "include", "reason"])

_GRPC = r"grpc|.*\.grpc\.pb\.h$"
_PROTO = r"proto/|google/protobuf/|.*\.pb\.h$"
_FOLDERS = r"(?:base|kernels|shm|layout|job|net|proto|checkpoint|coordinator|worker|client|tests)/"
_TESTS = r".*_test\.cc$|tests/"

# What public headers are made of: plain values, listed in docs/reference/api.md where programs use
# them by name.
_VALUES = (r"(?:base/(?:check|ids|unique_fd)|"
           r"job/(?:buffer_placement|field_limits|job_config|job_memory|live_tensors|"
           r"reshard_after_forward|save_spec|training_progress)|"
           r"layout/(?:dtype|flat_layout|memory_plan|model_layout|name_selection|shard_map|step_traffic|"
           r"stored_dtype|strategy|tensor_spec|values)|net/(?:keepalive|transport_security))\.h$")
_STD = r"[a-z_]+$"

# `where` and `unless` match from the start of the including file's path, `forbidden` from the
# start of the included name.
RULES = [
    Rule(r"base/", None, r"(?!base/)" + _FOLDERS, "base includes nothing above it"),
    Rule(r"kernels/", _TESTS, r"(?!base/|layout/|kernels/)" + _FOLDERS, "kernels include only base and layout"),
    Rule(r"shm/", _TESTS, r"(?!base/|layout/|job/|proto/|shm/)" + _FOLDERS,
         "what trainers, executors and keepers share includes only base, layout, job and the wire's messages"),
    Rule(r"layout/", _TESTS, r"(?!base/|layout/)" + _FOLDERS, "layout includes only base"),
    Rule(r"proto/", None, r"(?!base/|proto/)" + _FOLDERS, "proto includes only base"),
    Rule(r"job/", _TESTS, r"(?!base/|layout/|proto/|job/)" + _FOLDERS,
         "job includes only base, layout and the wire's messages"),
    Rule(r"job/(job_config|job_layout|job_memory|buffer_placement|save_spec\.)", _TESTS,
         _PROTO + r"|job/job_codec|job/save_spec_codec",
         "a job's config, layout and memory, and the spec of a save, know no wire"),
    Rule(r"net/", _TESTS, r"(?!base/|net/)" + _FOLDERS, "net includes only base"),
    Rule(r"checkpoint/", _TESTS, r"(?!base/|layout/|checkpoint/|kernels/)" + _FOLDERS,
         "files of models and checkpoints include only base, layout and the kernels that cast"),
    Rule(r"checkpoint/", r"checkpoint/storage/|" + _TESTS,
         r"(?:fcntl|unistd|dirent|sys/(?:stat|mman|uio|file))\.h$|filesystem$|fstream$",
         "files of models and checkpoints are reached through checkpoint/storage alone"),
    Rule(r"coordinator/core/", _TESTS, r"(?!base/|layout/|job/job_config|job/job_layout|job/job_memory|job/save_spec\.h|coordinator/core/)" + _FOLDERS,
         "the coordinator's core includes only base, layout, a job's config and the spec of a save"),
    Rule(r"coordinator/", None, r"worker/|client/|shm/|kernels/",
         "the coordinator includes no worker or client"),
    Rule(r"worker/", None, r"coordinator/|client/", "the worker includes no coordinator or client"),
    Rule(r"client/include/", r"client/include/tessera/torch/",
         rf"(?!tessera/(?!torch/)|{_VALUES}|absl/|{_STD})",
         "public headers include only public headers, values, Abseil and the standard library"),
    Rule(r"client/include/tessera/torch/", None, rf"(?!tessera/|{_VALUES}|absl/|torch/|{_STD})",
         "public headers of the adapter include only public headers, values, Abseil, libtorch and "
         "the standard library"),
    Rule(r"tests/example/(fit_line|train)\.cc|tests/snippets/guide_scope\.h", None,
         rf"(?!tessera/|absl/|torch/|{_STD})",
         "what documents show includes only public headers, Abseil, libtorch and the standard library"),
    Rule(_VALUES, None, rf"(?!{_VALUES}|absl/|{_STD})",
         "values of public headers include only such values, Abseil and the standard library"),
    Rule(r"client/", None, r"worker/engine/|worker/agent/|coordinator/core/",
         "clients see the worker's memory protocol and its servers, not their insides"),
    Rule(r"client/", r"client/executor/", r"worker/keeper/|worker/executor/(?!executor_machine|machine_devices)",
         "only client/executor has an executor in the trainer's process"),
    Rule(r"worker/engine/", _TESTS, _GRPC + "|" + _PROTO + r"|job/job_codec|net/|checkpoint/|sqlite3|etcd",
         "the engine includes no gRPC, no proto, no net and no checkpoint"),
    Rule(r"worker/(?:engine|device|comm)/", None, r"worker/(?:agent|service|keeper)/",
         "the engine, its devices and collectives include nothing above them"),
    Rule(r"worker/device/", None, r"worker/(?:comm|engine)/|checkpoint/",
         "devices include nothing above them"),
    Rule(r"worker/comm/", None, r"worker/engine/|checkpoint/",
         "collectives may use devices, not the engine"),
    Rule(r"", r"worker/device/cuda/|worker/comm/nccl/",
         r"cuda[_.A-Z]|cuda\w*\.h|cub/|thrust/|cooperative_groups|nvtx|nccl",
         "CUDA and NCCL headers only under worker/device/cuda and worker/comm/nccl"),
    Rule(r"", r"[a-z]+/(?:.*/)?service/|worker/agent/|client/.*\.cc$|proto/grpc_status|net/(?:credentials|caller_version|caller_identity|local_listener|server_connections|tcp_listener)|"
         + _TESTS, _GRPC, "gRPC headers only in */service, worker/agent, client sources, "
         "proto/grpc_status, net/{credentials,caller_version,caller_identity,local_listener,server_connections,tcp_listener}"),
    Rule(r"", r"tests/", r"tests/", "nothing includes tests/"),
    Rule(r"", r"client/torch/|client/include/tessera/torch/|tests/", r"torch/|ATen/|c10/",
         "libtorch only in client/torch and tessera/torch"),
]

# What goes with the wall clock, which people and NTP set: see base/steady_time.h.
_WALL_CLOCK = re.compile(r"absl::Now\(\)|WaitForNotificationWith|\bmu_?(?:\.|->)(?:Await|Wait)With")
_MAY_USE_WALL_CLOCK = re.compile(_TESTS + r"|base/steady_time\.|.*(?:test_|_fixture|_conformance|_process\.cc)|client/torch/torch_cluster")

_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def violations(path, text):
    """Returns the Violations of one file, in the order of its lines."""
    rules = [rule for rule in RULES
             if re.match(rule.where, path) and not (rule.unless and re.match(rule.unless, path))]
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        clock = _WALL_CLOCK.search(line.split("//")[0])
        if clock and not _MAY_USE_WALL_CLOCK.match(path):
            found.append(Violation(path, number, clock.group(0), "deadlines go by base/steady_time.h"))
        include = _INCLUDE.match(line)
        if not include:
            continue
        found += [Violation(path, number, include.group(1), rule.reason)
                  for rule in rules if re.match(rule.forbidden, include.group(1))]
    return found
