// FakeCudaApi: events, of one process and of several.
#include <utility>

#include "base/status_macros.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/fake_cuda_api.h"
#include "worker/device/cuda/fake_cuda_handles.h"

namespace tessera {
namespace {

absl::Status CheckUsable(absl::string_view call, CudaEventHandle* event) {
  const auto& shared = Of(event)->shared;
  const bool usable = shared == nullptr || shared->usable();
  return CudaStatus(call, usable ? kCudaSuccess : kCudaInvalidHandle);
}

}  // namespace

absl::StatusOr<CudaEventHandle*> FakeCudaApi::EventCreate() {
  RETURN_IF_ERROR(Enter("EventCreate", Needs::kContext));
  return NewEvent(/*timed=*/false);
}

absl::StatusOr<CudaEventHandle*> FakeCudaApi::EventCreateTimed() {
  RETURN_IF_ERROR(Enter("EventCreateTimed", Needs::kContext));
  return NewEvent(/*timed=*/true);
}

CudaEventHandle* FakeCudaApi::NewEvent(bool timed, std::shared_ptr<FakeSharedEvent> shared) {
  auto* event = new FakeEvent();
  event->timed = timed;
  event->shared = std::move(shared);
  absl::MutexLock lock(&mu_);
  ++events_;
  return reinterpret_cast<CudaEventHandle*>(event);
}

absl::Status FakeCudaApi::EventDestroy(CudaEventHandle* event) {
  const absl::Status entered = Enter("EventDestroy", Needs::kContext);
  if (!entered.ok() && !IsBroken(entered)) return entered;
  if (Of(event)->shared != nullptr) Of(event)->shared->Destroy();
  delete Of(event);
  absl::MutexLock lock(&mu_);
  --events_;
  return entered;
}

absl::Status FakeCudaApi::EventRecord(CudaEventHandle* event, CudaStreamHandle* stream) {
  RETURN_IF_ERROR(Enter("EventRecord", Needs::kContext));
  RETURN_IF_ERROR(CheckUsable("cuEventRecord", event));
  if (const auto& shared = Of(event)->shared; shared != nullptr) {
    // Dropped once the context is broken: other processes are not told of work that was not done.
    RunOnStream(stream, [shared, mark = shared->NextMark()] { shared->Reach(mark); });
    return absl::OkStatus();
  }
  if (Of(event)->timed) {
    RunOnStream(stream, [this, nanos = Of(event)->nanos] { *nanos = clock_nanos_.load(); });
  }
  const auto& reached = Of(event)->reached;
  Of(stream)->queue->Enqueue([reached, mark = reached->NextMark()] { reached->Reach(mark); });
  return absl::OkStatus();
}

absl::StatusOr<bool> FakeCudaApi::EventQuery(CudaEventHandle* event) {
  RETURN_IF_ERROR(Enter("EventQuery", Needs::kContext));
  RETURN_IF_ERROR(CheckUsable("cuEventQuery", event));
  const auto& shared = Of(event)->shared;
  return shared != nullptr ? shared->IsReached(shared->LastMark()) : Of(event)->reached->Query();
}

absl::Status FakeCudaApi::EventSynchronize(CudaEventHandle* event) {
  RETURN_IF_ERROR(Enter("EventSynchronize", Needs::kContext));
  RETURN_IF_ERROR(CheckUsable("cuEventSynchronize", event));
  if (const auto& shared = Of(event)->shared; shared != nullptr) {
    shared->Await(shared->LastMark(), broken_);
  } else {
    Of(event)->reached->Synchronize();
  }
  return CudaStatus("cuEventSynchronize", broken_);
}

absl::StatusOr<double> FakeCudaApi::EventElapsedTime(CudaEventHandle* start, CudaEventHandle* end) {
  RETURN_IF_ERROR(Enter("EventElapsedTime", Needs::kContext));
  for (CudaEventHandle* event : {start, end}) {
    if (!Of(event)->timed || *Of(event)->nanos < 0) {
      return CudaStatus("cuEventElapsedTime", kCudaInvalidHandle);
    }
    if (!Of(event)->reached->Query()) return CudaStatus("cuEventElapsedTime", kCudaNotReady);
  }
  return static_cast<double>(*Of(end)->nanos - *Of(start)->nanos) * 1e-6;
}

absl::Status FakeCudaApi::StreamWaitEvent(CudaStreamHandle* stream, CudaEventHandle* event) {
  RETURN_IF_ERROR(Enter("StreamWaitEvent", Needs::kContext));
  RETURN_IF_ERROR(CheckUsable("cuStreamWaitEvent", event));
  if (const auto& shared = Of(event)->shared; shared != nullptr) {
    Of(stream)->queue->Enqueue(
        [this, shared, mark = shared->LastMark()] { shared->Await(mark, broken_); });
  } else {
    const auto& reached = Of(event)->reached;
    Of(stream)->queue->Enqueue([reached, mark = reached->LastMark()] { reached->AwaitMark(mark); });
  }
  return absl::OkStatus();
}

absl::StatusOr<CudaEventHandle*> FakeCudaApi::EventCreateInterprocess() {
  RETURN_IF_ERROR(Enter("EventCreateInterprocess", Needs::kContext));
  std::shared_ptr<FakeSharedEvent> shared = FakeSharedEvent::Create();
  if (shared == nullptr) return CudaStatus("cuEventCreate", kCudaOutOfMemory);
  return NewEvent(/*timed=*/false, std::move(shared));
}

absl::StatusOr<CudaIpcEventHandle> FakeCudaApi::IpcGetEventHandle(CudaEventHandle* event) {
  RETURN_IF_ERROR(Enter("IpcGetEventHandle", Needs::kContext));
  if (!options_.ipc_events) return CudaStatus("cuIpcGetEventHandle", kCudaNotSupported);
  CudaIpcEventHandle handle;
  const auto& shared = Of(event)->shared;
  const bool exported = shared != nullptr && shared->Export(&handle);
  RETURN_IF_ERROR(CudaStatus("cuIpcGetEventHandle", exported ? kCudaSuccess : kCudaInvalidHandle));
  return handle;
}

absl::StatusOr<CudaEventHandle*> FakeCudaApi::IpcOpenEventHandle(const CudaIpcEventHandle& handle) {
  RETURN_IF_ERROR(Enter("IpcOpenEventHandle", Needs::kContext));
  if (!options_.ipc_events) return CudaStatus("cuIpcOpenEventHandle", kCudaNotSupported);
  std::shared_ptr<FakeSharedEvent> shared = FakeSharedEvent::Open(handle);
  if (shared == nullptr) return CudaStatus("cuIpcOpenEventHandle", kCudaInvalidHandle);
  return NewEvent(/*timed=*/false, std::move(shared));
}

}  // namespace tessera
