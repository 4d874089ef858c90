#include "tests/testing/gpu_clusters.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "tessera/device_gradients.h"
#include "tessera/optimizer_state.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/toy_training.h"
#include "worker/executor/executor_machine.h"

namespace tessera::testing_support {

absl::StatusOr<JobState> ReadJobState(Session* session) {
  JobState state;
  ASSIGN_OR_RETURN(const TrainingProgress progress, ReadProgress(session));
  state.step = progress.step;
  size_t number = 0;
  for (int unit = 0; unit < session->num_units(); ++unit) {
    const auto& parameters = session->layout().units[unit].flat.parameters();
    const auto keep = [&](const std::string& suffix) {
      return [&, suffix](int p, ConstValues values) {
        std::vector<double>& to = state.tensors[parameters[p].spec.name + suffix];
        const auto copy = [&](auto all) { to.assign(all.begin(), all.end()); };
        values.dtype() == DType::kFp64 ? copy(values.as<double>()) : copy(values.as<float>());
      };
    };
    RETURN_IF_ERROR(session->ReadParameters(unit, keep("")));
    for (const StateArray array : MomentsOf(session->config().optimizer)) {
      RETURN_IF_ERROR(
          ReadMoments(session, unit, array, keep(absl::StrCat("/", static_cast<int>(array)))));
    }
    for (const PlacedParameter& parameter : parameters)
      state.update_counts[parameter.spec.name] = progress.update_counts[number++];
  }
  return state;
}

JobState StateOf(TrainerTeam* team) {
  JobState state;
  EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(JobState read, ReadJobState(session));
    if (session->rank() == 0) state = std::move(read);
    return absl::OkStatus();
  }));
  return state;
}

void GpuClusters::SetUp() {
  LocalCluster::Options options;
  options.num_devices = 64;  // Jobs stay.
  ASSERT_OK_AND_ASSIGN(on_host_, LocalCluster::Start(options));
  options.device_memory = FakeGpuMemory();
  options.machine = std::make_shared<ExecutorMachine>();
  options.machine->make_device = MakeFakeGpuDevice;
  ASSERT_OK_AND_ASSIGN(on_gpu_, LocalCluster::Start(options));
  ASSERT_OK_AND_ASSIGN(gpu_, MakeFakeGpuDevice(0));
  ASSERT_OK_AND_ASSIGN(host_, MakeFakeGpuDevice(kHostDevice));
}

SessionOptions GpuClusters::Job(int world_size) {
  SessionOptions options = ToyOptions(*on_host_, absl::StrCat("job", ++num_jobs_), world_size);
  options.model = ToyModel(3, /*with_frozen=*/true);
  return options;
}

SessionOptions GpuClusters::On(const LocalCluster& cluster, const SessionOptions& job) {
  SessionOptions options = job;
  options.coordinator_address = cluster.coordinator_address();
  options.worker_address = cluster.worker_address();
  options.make_device = MakeFakeGpuDevice;
  return options;
}

RankDevice* GpuClusters::DeviceOf(Session* session) const {
  return DeviceGradients(session).available() ? gpu_.get() : host_.get();
}

absl::Status GpuClusters::Train(TrainerTeam* team, int64_t last_step) {
  return team->RunAll(
      [&](Session* session) { return TrainToyOn(session, DeviceOf(session), last_step); });
}

}  // namespace tessera::testing_support
