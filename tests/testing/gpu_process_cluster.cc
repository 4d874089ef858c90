#include "tests/testing/gpu_process_cluster.h"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"

namespace tessera::testing_support {

void GpuProcessCluster::StartCluster(const std::string& faults) {
  LocalCluster::Options options;
  options.num_devices = 2 * kWorldSize;
  options.executor_binary = "tests/testing/fake_gpu_executor";
  if (!faults.empty()) options.executor_flags = {"--fault-points=" + faults};
  options.device_memory = FakeGpuMemory();
  ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  ASSERT_OK_AND_ASSIGN(gpu_, MakeFakeGpuDevice(0));
}

SessionOptions GpuProcessCluster::Options(bool offload, bool in_backward) const {
  SessionOptions options = ToyOptions(*cluster_, "toy", kWorldSize);
  options.model = ToyModel(3, /*with_frozen=*/true);
  options.config.cpu_offload = offload;
  options.config.optimizer_in_backward = in_backward;
  options.config.max_gradient_norm = in_backward ? 0.0 : 0.5;
  options.make_device = MakeFakeGpuDevice;
  return options;
}

absl::Status GpuProcessCluster::Train(TrainerTeam* team, int64_t last_step) {
  return team->RunAll([&](Session* session) { return TrainToyOn(session, gpu_.get(), last_step); });
}

JobState GpuProcessCluster::StateThroughFailures(TrainerTeam* team) {
  for (int tries = 0; tries < 100; ++tries) {
    // A rank may have ended its last step in an epoch that failed since.
    EXPECT_OK(team->RunAll([](Session* session) { return session->Recover(); }));
    JobState state;
    absl::Status first;
    for (const absl::Status& status : team->Run([&](Session* session) -> absl::Status {
           ASSIGN_OR_RETURN(JobState read, ReadJobState(session));
           if (session->rank() == 0) state = std::move(read);
           return absl::OkStatus();
         })) {
      first.Update(status);
    }
    if (first.ok()) return state;
    EXPECT_THAT(first, StatusIs(absl::StatusCode::kAborted, testing::_));
  }
  ADD_FAILURE() << "the state is never read";
  return {};
}

JobState GpuProcessCluster::Undisturbed(const SessionOptions& options, int64_t steps) {
  LocalCluster::Options on_host;
  on_host.num_devices = options.config.world_size;
  auto cluster = LocalCluster::Start(on_host);
  EXPECT_OK(cluster);
  SessionOptions own = options;
  own.coordinator_address = (*cluster)->coordinator_address();
  own.worker_address = (*cluster)->worker_address();
  auto team = TrainerTeam::Open(own);
  EXPECT_OK(team);
  EXPECT_OK(team->TrainTo(steps));
  return StateOf(&*team);
}

std::map<std::string, int> GpuProcessCluster::Executors() const {
  std::map<std::string, int> executors;
  EXPECT_TRUE(Eventually([&] {
    executors = ExecutorsOf(getpid());
    return executors.size() == kWorldSize;
  }));
  return executors;
}

std::map<int, std::string> GpuProcessCluster::GpuMemory() {
  std::map<int, std::string> memory;
  for (const auto& [fd, name] : DescriptorsOf(getpid())) {
    struct stat info;
    if (!absl::StartsWith(name, "/memfd:fake_cuda") || fstat(fd, &info) != 0) continue;
    std::string bytes(info.st_size, 0);
    EXPECT_EQ(pread(fd, bytes.data(), bytes.size(), 0), info.st_size);
    memory[fd] = std::move(bytes);
  }
  return memory;
}

}  // namespace tessera::testing_support
