#include "tests/gpu/sharded_work.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tessera/device_gradients.h"

namespace tessera {
namespace gpu_check {

absl::StatusOr<std::unique_ptr<ShardedTraining>> ShardedTraining::Open(SessionOptions options,
                                                                       ModelWork* model,
                                                                       const Initial& initial) {
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Open(options));
  RETURN_IF_ERROR(session->Initialize([&](int unit, int, Values values) {
    for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i)
      values.as<float>()[i] = initial(unit, i);
  }));
  return std::make_unique<ShardedTraining>(std::move(session), model);
}

absl::StatusOr<StepResult> ShardedTraining::Step(const ModelPasses& passes,
                                                 const StepOptions& options) {
  DeviceGradients gradients(session_.get());
  const int num_units = session_->num_units();
  for (int u = 0; u < num_units; ++u) {
    RETURN_IF_ERROR(session_->Unshard(u));
    if (passes.forward) RETURN_IF_ERROR(passes.forward(u, session_->parameters(u)));
    gradients.AfterStream(model_->stream());
    RETURN_IF_ERROR(session_->Reshard(u));
  }
  for (int u = num_units - 1; u >= 0; --u) {
    RETURN_IF_ERROR(session_->Unshard(u));
    if (passes.backward) RETURN_IF_ERROR(passes.backward(u, session_->parameters(u)));
    gradients.AfterStream(model_->stream());
    RETURN_IF_ERROR(gradients.Add(u, 0, model_->gradient(u),
                                  session_->layout().units[u].flat.parameters()[0].numel,
                                  DType::kBf16));
    RETURN_IF_ERROR(session_->Reshard(u));
    RETURN_IF_ERROR(session_->Reduce(u));
  }
  return session_->Step(options);
}

absl::Status ShardedTraining::Compare(const PlainTraining& plain) {
  for (int u = 0; u < session_->num_units(); ++u) {
    const int64_t numel = session_->layout().units[u].flat.parameters()[0].numel;
    std::vector<uint16_t> expected(numel), found(numel);
    RETURN_IF_ERROR(session_->Unshard(u));
    CudaRankKernels& kernels = model_->kernels();
    kernels.Copy(found.data(), session_->parameter(u, 0), numel * sizeof(uint16_t));
    kernels.Copy(expected.data(), plain.halves(u), numel * sizeof(uint16_t));
    RETURN_IF_ERROR(kernels.Finish());
    RETURN_IF_ERROR(session_->Reshard(u));
    if (found != expected)
      return absl::DataLossError(absl::StrCat("unit ", u, " has not the plain one's bits"));
  }
  return absl::OkStatus();
}

SessionOptions ShardedJob(const testing_support::GpuUnderTest& gpu, const LocalCluster& cluster,
                          const StepShape& shape) {
  SessionOptions job;
  job.coordinator_address = cluster.coordinator_address();
  job.worker_address = cluster.worker_address();
  job.make_device = gpu.make_device;
  job.config.compute_dtype = job.config.reduce_dtype = DType::kBf16;
  job.config.optimizer = OptimizerKind::kAdamW;
  for (int u = 0; u < shape.num_units; ++u) {
    const std::string name = absl::StrCat("unit", u);
    job.model.units.push_back({name, {{name + ".weight", {shape.unit_numel}, DType::kFp32}}});
  }
  return job;
}

absl::StatusOr<std::unique_ptr<LocalCluster>> StartBenchCluster(
    const testing_support::GpuUnderTest& gpu) {
  LocalCluster::Options options;
  options.num_devices = 2;
  options.executor_binary = gpu.executor_binary;
  options.device_memory = gpu.memory;
  return LocalCluster::Start(options);
}

}  // namespace gpu_check
}  // namespace tessera
