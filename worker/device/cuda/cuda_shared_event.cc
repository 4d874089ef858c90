#include "worker/device/cuda/cuda_shared_event.h"

#include <cstring>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace tessera {

static_assert(sizeof(SharedEventName) == sizeof(CudaIpcEventHandle));

absl::StatusOr<std::unique_ptr<CudaSharedEvent>> CudaSharedEvent::Create(PrimaryContext* context) {
  RETURN_IF_ERROR(context->Use());
  ASSIGN_OR_RETURN(CudaEventHandle* const handle, context->api()->EventCreateInterprocess());
  auto event = absl::WrapUnique(new CudaSharedEvent(context, handle));
  ASSIGN_OR_RETURN(const CudaIpcEventHandle name, context->api()->IpcGetEventHandle(handle));
  memcpy(event->name_.bytes, name.bytes, sizeof(name.bytes));
  return event;
}

absl::StatusOr<std::unique_ptr<CudaSharedEvent>> CudaSharedEvent::Open(
    PrimaryContext* context, const SharedEventName& name) {
  const absl::Status used = context->Use();
  if (!context->Check(used)) return used;
  CudaIpcEventHandle of_cuda;
  memcpy(of_cuda.bytes, name.bytes, sizeof(name.bytes));
  const absl::StatusOr<CudaEventHandle*> handle = context->api()->IpcOpenEventHandle(of_cuda);
  if (!handle.ok()) {
    return absl::UnavailableError(
        absl::StrCat("an event of another process: ", handle.status().message()));
  }
  auto event = absl::WrapUnique(new CudaSharedEvent(context, *handle));
  event->name_ = name;
  return event;
}

CudaSharedEvent::~CudaSharedEvent() {
  absl::Status status = context_->Use();
  status.Update(context_->api()->EventDestroy(handle_));
  // Whoever made it may be gone, and the driver promises nothing then: no reason to think the
  // device broken.
  if (!status.ok())
    TESSERA_LOG(WARNING, "an event of several processes is not given back: {}", status.ToString());
}

absl::StatusOr<bool> CudaSharedEvent::Query() {
  const absl::Status used = context_->Use();
  if (!context_->Check(used)) return used;
  const absl::StatusOr<bool> reached = context_->api()->EventQuery(handle_);
  context_->Check(reached.status());
  return reached;
}

}  // namespace tessera
