// FakeCudaApi's graphs: what a stream was given, run in its order each time that it is launched.
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/fake_cuda_api.h"
#include "worker/device/cuda/fake_cuda_handles.h"

namespace tessera {

absl::Status FakeCudaApi::StreamBeginCapture(CudaStreamHandle* stream) {
  RETURN_IF_ERROR(Enter("StreamBeginCapture", Needs::kContext));
  if (Of(stream) == FakeLegacyStream() || Of(stream)->captured != nullptr)
    return CudaStatus("cuStreamBeginCapture", kCudaStreamCaptureUnsupported);
  Of(stream)->captured = std::make_unique<FakeGraph>();
  return absl::OkStatus();
}

absl::StatusOr<CudaGraphHandle*> FakeCudaApi::StreamEndCapture(CudaStreamHandle* stream) {
  std::unique_ptr<FakeGraph> captured = std::move(Of(stream)->captured);
  RETURN_IF_ERROR(Enter("StreamEndCapture", Needs::kContext));
  if (captured == nullptr) return CudaStatus("cuStreamEndCapture", kCudaInvalidValue);
  absl::MutexLock lock(&mu_);
  ++graphs_;
  return reinterpret_cast<CudaGraphHandle*>(captured.release());
}

absl::Status FakeCudaApi::GraphLaunch(CudaGraphHandle* graph, CudaStreamHandle* stream) {
  RETURN_IF_ERROR(Enter("GraphLaunch", Needs::kContext));
  for (const auto& work : *Of(graph)) RunOnStream(stream, [work] { (*work)(); });
  return absl::OkStatus();
}

absl::Status FakeCudaApi::GraphDestroy(CudaGraphHandle* graph) {
  const absl::Status entered = Enter("GraphDestroy", Needs::kContext);
  if (!entered.ok() && !IsBroken(entered)) return entered;
  delete Of(graph);
  absl::MutexLock lock(&mu_);
  --graphs_;
  return entered;
}

}  // namespace tessera
