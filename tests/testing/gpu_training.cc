#include "tests/testing/gpu_training.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tessera/device_gradients.h"
#include "tests/testing/toy_training.h"
#include "worker/device/host/host_rank_kernels.h"

namespace tessera::testing_support {
namespace {

using Unit = std::vector<std::vector<float>>;  // By parameter.

// What is enqueued here may read the buffers, and write to them, until the session's work is done.
absl::Status EnqueueOnDevice(Session* session, RankDevice* device, int unit, const Unit& gradients,
                             std::vector<Buffer>* buffers) {
  std::vector<Buffer>& on_gpu = *buffers;
  ASSIGN_OR_RETURN(const std::unique_ptr<RankKernels> kernels, device->CreateKernels({}));
  for (const std::vector<float>& gradient : gradients) {
    ASSIGN_OR_RETURN(Buffer buffer, device->Allocate(gradient.size() * sizeof(float)));
    on_gpu.push_back(std::move(buffer));
    kernels->Copy(on_gpu.back().data(), gradient.data(), on_gpu.back().size_bytes());
  }
  RETURN_IF_ERROR(kernels->Finish());
  const auto& parameters = session->layout().units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].spec.requires_grad) continue;
    RETURN_IF_ERROR(
        DeviceGradients(session).Add(unit, p, on_gpu[p].data(), parameters[p].numel, DType::kFp32));
  }
  return session->Reduce(unit);
}

absl::Status AddOnDevice(Session* session, RankDevice* device, int unit, const Unit& gradients) {
  std::vector<Buffer> on_gpu;
  absl::Status status = EnqueueOnDevice(session, device, unit, gradients, &on_gpu);
  status.Update(DeviceGradients(session).Finish());  // Then the buffers were read.
  return status;
}

Unit GradientsOf(Unit values, int rank, int64_t step) {
  for (std::vector<float>& parameter : values) {
    for (size_t i = 0; i < parameter.size(); ++i)
      parameter[i] = ToyGradient(parameter[i], i, rank, step);
  }
  return values;
}

}  // namespace

absl::Status AddAndReduce(Session* session, RankDevice* device, int unit, const Unit& gradients) {
  if (DeviceGradients(session).available()) return AddOnDevice(session, device, unit, gradients);
  const auto& parameters = session->layout().units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].spec.requires_grad)
      RETURN_IF_ERROR(session->AddGradient(unit, p, gradients[p]));
  }
  return session->Reduce(unit);
}

absl::StatusOr<Unit> ReadUnit(Session* session, RankDevice* device, int unit) {
  ASSIGN_OR_RETURN(const std::unique_ptr<RankKernels> kernels, device->CreateKernels({}));
  const auto& parameters = session->layout().units[unit].flat.parameters();
  Unit values(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    values[p].resize(parameters[p].numel);
    kernels->Copy(values[p].data(), session->parameter(unit, p),
                  parameters[p].numel * sizeof(float));
  }
  RETURN_IF_ERROR(kernels->Finish());
  return values;
}

absl::StatusOr<std::vector<float>> ReadAllFrom(Session* session, RankDevice* device) {
  std::vector<float> all;
  for (int u = 0; u < session->num_units(); ++u) {
    RETURN_IF_ERROR(session->Unshard(u));
    ASSIGN_OR_RETURN(const Unit values, ReadUnit(session, device, u));
    for (const std::vector<float>& parameter : values)
      all.insert(all.end(), parameter.begin(), parameter.end());
    RETURN_IF_ERROR(session->Reshard(u));
  }
  return all;
}

absl::Status ToyStepOn(Session* session, RankDevice* device, int64_t step, int micro_batches) {
  std::vector<Unit> gradients(session->num_units());
  for (int u = 0; u < session->num_units(); ++u) {
    RETURN_IF_ERROR(session->Unshard(u));
    ASSIGN_OR_RETURN(gradients[u], ReadUnit(session, device, u));
    gradients[u] = GradientsOf(std::move(gradients[u]), session->rank(), step);
    RETURN_IF_ERROR(session->Reshard(u));
  }
  for (int k = 0; k < micro_batches; ++k) {
    for (int u = session->num_units() - 1; u >= 0; --u)
      RETURN_IF_ERROR(AddAndReduce(session, device, u, gradients[u]));
  }
  return session->Step().status();
}

absl::StatusOr<Unit> ReadWindow(Session* session, RankDevice* device, int unit) {
  ASSIGN_OR_RETURN(const std::unique_ptr<RankKernels> kernels, device->CreateKernels({}));
  const bool full = session->precision(unit) == Precision::kFull;
  const DType dtype = full ? session->full_dtype(unit) : session->config().compute_dtype;
  const auto& parameters = session->layout().units[unit].flat.parameters();
  Unit values(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    std::vector<std::byte> bytes(parameters[p].numel * SizeBytes(dtype));
    const std::byte* from = full ? session->full_parameter(unit, p) : session->parameter(unit, p);
    kernels->Copy(bytes.data(), from, bytes.size());
    RETURN_IF_ERROR(kernels->Finish());
    values[p].resize(parameters[p].numel);
    HostRankKernels().Reduce({bytes.data()}, dtype, parameters[p].numel, 1.0, /*accumulate=*/false,
                             {values[p].data(), DType::kFp32}, /*measure=*/false);
  }
  return values;
}

absl::Status WindowedStepOn(Session* session, RankDevice* device, int64_t step, bool backwards) {
  std::vector<int> order;
  for (int u = 1; u < session->num_units(); ++u) order.push_back(u);
  if (backwards) std::reverse(order.begin(), order.end());
  RETURN_IF_ERROR(session->Unshard(0));
  std::vector<Unit> seen(session->num_units());
  ASSIGN_OR_RETURN(seen[0], ReadWindow(session, device, 0));
  for (size_t i = 0; i < order.size(); ++i) {
    RETURN_IF_ERROR(session->Unshard(order[i]));
    if (i + 1 < order.size()) RETURN_IF_ERROR(session->UnshardAsync(order[i + 1]));
    ASSIGN_OR_RETURN(seen[order[i]], ReadWindow(session, device, order[i]));
    RETURN_IF_ERROR(session->Reshard(order[i]));
  }
  for (size_t i = order.size(); i-- > 0;) {
    const int u = order[i];
    if (!session->unsharded(u)) RETURN_IF_ERROR(session->Unshard(u));
    if (i > 0) RETURN_IF_ERROR(session->Unshard(order[i - 1]));
    ASSIGN_OR_RETURN(const Unit again, ReadWindow(session, device, u));
    if (again != seen[u])
      return absl::DataLossError(absl::StrCat("unit ", u, " is another one in backward"));
    RETURN_IF_ERROR(session->Reshard(u));
    RETURN_IF_ERROR(AddAndReduce(session, device, u, GradientsOf(again, session->rank(), step)));
  }
  RETURN_IF_ERROR(AddAndReduce(session, device, 0, GradientsOf(seen[0], session->rank(), step)));
  return session->Step().status();
}

absl::Status TrainToyOn(Session* session, RankDevice* device, int64_t last_step,
                        int micro_batches) {
  while (true) {
    absl::Status status = InitializeToy(session);
    while (status.ok() && session->next_step() <= last_step) {
      const int64_t step = session->next_step();
      status = session->RunStep([&] { return ToyStepOn(session, device, step, micro_batches); });
    }
    if (!absl::IsAborted(status)) return status;
    RETURN_IF_ERROR(session->Recover());
  }
}

}  // namespace tessera::testing_support
