"""Each arrow once kept and once broken."""

import unittest

from tools import layers

BROKEN = [
    ("base/log.cc", "layout/dtype.h"),
    ("layout/shard_map.h", "proto/types.pb.h"),
    ("proto/grpc_status.h", "layout/dtype.h"),
    ("layout/shard_map.h", "job/job_config.h"),
    ("job/job_codec.cc", "shm/region.h"),
    ("job/job_config.h", "proto/types.pb.h"),
    ("coordinator/core/job.cc", "job/job_codec.h"),
    ("worker/engine/unit.cc", "job/job_codec.h"),
    ("net/credentials.h", "proto/grpc_status.h"),
    ("net/address.h", "grpcpp/grpcpp.h"),
    ("coordinator/core/job.cc", "net/address.h"),
    ("worker/engine/unit.cc", "net/transport_security.h"),
    ("coordinator/core/job.cc", "coordinator/storage/journal.h"),
    ("coordinator/core/job.cc", "proto/types.pb.h"),
    ("coordinator/service/codec.cc", "shm/region.h"),
    ("kernels/kernels.h", "shm/region.h"),
    ("shm/region.h", "worker/device/device.h"),
    ("client/include/tessera/session.h", "proto/types.pb.h"),
    ("client/include/tessera/session.h", "worker/device/device_memory.h"),
    ("client/include/tessera/session.h", "client/session/session_state.h"),
    ("client/include/tessera/session.h", "shm/region.h"),
    ("client/include/tessera/session.h", "job/job_codec.h"),
    ("client/include/tessera/session.h", "base/log.h"),
    ("client/include/tessera/session.h", "grpcpp/channel.h"),
    ("client/include/tessera/session.h", "unistd.h"),
    ("client/include/tessera/session.h", "tessera/torch/sharded.h"),
    ("client/include/tessera/session.h", "torch/types.h"),
    ("client/include/tessera/torch/sharded.h", "client/torch/module_units.h"),
    ("client/include/tessera/torch/sharded.h", "layout/shard_view.h"),
    ("client/include/tessera/torch/sharded.h", "worker/device/device_memory.h"),
    ("job/job_config.h", "base/log.h"),
    ("net/keepalive.h", "net/address.h"),
    ("tests/example/train.cc", "job/job_config.h"),
    ("tests/snippets/guide_scope.h", "client/torch/module_units.h"),
    ("worker/agent/agent.cc", "coordinator/core/job.h"),
    ("worker/service/worker_service.cc", "client/session/client.h"),
    ("client/session/rank.cc", "worker/engine/unit.h"),
    ("client/session/rank.cc", "worker/executor/rank_executor.h"),
    ("worker/engine/unit.cc", "grpcpp/grpcpp.h"),
    ("worker/engine/unit.cc", "proto/types.pb.h"),
    ("worker/engine/unit.cc", "checkpoint/object_store.h"),
    ("worker/engine/unit.cc", "worker/service/server.h"),
    ("worker/comm/shm/shm.cc", "worker/engine/unit.h"),
    ("worker/device/device.h", "worker/comm/communicator.h"),
    ("worker/engine/unit.cc", "cuda_runtime.h"),
    ("worker/device/host/host_device.cc", "cuda.h"),
    ("worker/comm/tcp/tcp.cc", "nccl.h"),
    ("worker/keeper/keeper.h", "grpcpp/server.h"),
    ("client/session/client.h", "grpcpp/channel.h"),
    ("checkpoint/publish.cc", "proto/worker.grpc.pb.h"),
    ("checkpoint/manifest/manifest.cc", "fcntl.h"),
    ("checkpoint/safetensors/crc32.h", "sys/stat.h"),
    ("checkpoint/open_model.cc", "filesystem"),
    ("layout/shard_map_test.cc", "tests/testing/cluster.h"),
    ("client/session/client.cc", "torch/torch.h"),
]

KEPT = [
    ("base/log.cc", "base/check.h"),
    ("layout/shard_map.h", "base/ids.h"),
    ("coordinator/core/job.cc", "layout/model_layout.h"),
    ("coordinator/service/codec.cc", "grpcpp/server.h"),
    ("net/credentials.cc", "grpcpp/create_channel.h"),
    ("job/job_codec.cc", "proto/types.pb.h"),
    ("coordinator/core/types.h", "job/job_config.h"),
    ("worker/engine/unit.cc", "job/job_config.h"),
    ("client/include/tessera/session.h", "net/transport_security.h"),
    ("client/include/tessera/session.h", "tessera/session_options.h"),
    ("client/include/tessera/session.h", "absl/status/status.h"),
    ("client/include/tessera/session.h", "unordered_map"),
    ("client/include/tessera/torch/sharded.h", "torch/types.h"),
    ("client/include/tessera/torch/sharded.h", "tessera/session.h"),
    ("client/include/tessera/torch/sharded.h", "tessera/torch/internal/tensor_cast.h"),
    ("layout/model_layout.h", "layout/flat_layout.h"),
    ("tests/example/train.cc", "tessera/torch/sharded_model.h"),
    ("tests/example/example_test.cc", "base/status_matchers.h"),
    ("job/job_config.cc", "base/log.h"),
    ("worker/agent/agent.cc", "proto/coordinator.grpc.pb.h"),
    ("worker/engine/unit.cc", "worker/comm/communicator.h"),
    ("worker/comm/nccl/nccl_api.cc", "nccl.h"),
    ("worker/comm/nccl/nccl_api.cc", "worker/device/buffer.h"),
    ("worker/device/cuda/cuda_api.cc", "cuda_runtime.h"),
    ("worker/device/buffer.h", "cstdint"),
    ("client/session/client.cc", "grpcpp/channel.h"),
    ("client/session/rank.cc", "shm/control_page.h"),
    ("client/session/local_cluster.cc", "worker/executor/executor_machine.h"),
    ("client/executor/host_executor.cc", "worker/executor/rank_executor.h"),
    ("client/torch/module_units.h", "torch/torch.h"),
    ("tests/integration/step_test.cc", "tests/testing/cluster.h"),
    ("checkpoint/storage/posix_storage.cc", "fcntl.h"),
    ("checkpoint/manifest/manifest_test.cc", "filesystem"),
    ("worker/keeper/keeper_test.cc", "grpcpp/server.h"),
]


class LayersTest(unittest.TestCase):

    def test_every_broken_arrow_is_reported(self):
        for path, include in BROKEN:
            with self.subTest(path=path, include=include):
                found = layers.violations(path, f"// A file.\n#include <{include}>\n")
                self.assertTrue(found)
                self.assertEqual((found[0].line, found[0].include), (2, include))

    def test_every_kept_arrow_passes(self):
        for path, include in KEPT:
            with self.subTest(path=path, include=include):
                self.assertEqual(layers.violations(path, f'#include "{include}"\n'), [])

    def test_every_rule_is_broken_by_some_case(self):
        reasons = {violation.reason for path, include in BROKEN
                   for violation in layers.violations(path, f'#include "{include}"')}
        self.assertEqual(reasons, {rule.reason for rule in layers.RULES})

    def test_a_comment_or_string_is_no_include(self):
        self.assertEqual(layers.violations("base/a.cc", '// #include "layout/a.h"\n"#include"'), [])

    def test_deadlines_by_the_wall_clock_are_reported(self):
        for text in ("absl::Now()", "mu_.AwaitWithTimeout(a, b);", "mu->AwaitWithDeadline(a, b)",
                     "done.WaitForNotificationWithTimeout(a)"):
            with self.subTest(text=text):
                found = layers.violations("worker/keeper/a.cc", f"int a;\n  if (x) {text};\n")
                self.assertEqual([violation.line for violation in found], [2])
                self.assertEqual(layers.violations("worker/keeper/a_test.cc", text), [])
                self.assertEqual(layers.violations("worker/keeper/a.cc", f"// {text}"), [])
        self.assertEqual(layers.violations("worker/a.cc", "AwaitWithTimeout(&mu_, a, b)"), [])


if __name__ == "__main__":
    unittest.main()
