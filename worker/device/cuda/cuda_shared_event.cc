#include "worker/device/cuda/cuda_shared_event.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace tessera {

static_assert(sizeof(SharedEventName) == sizeof(CudaIpcEventHandle));

// Those that this process made and has not destroyed, by name.
class CudaSharedEvent::Registry {
 public:
  static Registry& OfThisProcess() {
    // Never destroyed: threads may outlive main.
    static Registry* const registry = new Registry();
    return *registry;
  }
  void Add(const SharedEventName& name, std::shared_ptr<Made> made) {
    absl::MutexLock lock(&mu_);
    made_[Key(name)] = std::move(made);
  }
  void Remove(const SharedEventName& name) {
    absl::MutexLock lock(&mu_);
    made_.erase(Key(name));
  }
  // Null: it is another process's, or nobody's.
  std::shared_ptr<Made> Find(const SharedEventName& name) {
    absl::MutexLock lock(&mu_);
    const auto it = made_.find(Key(name));
    return it == made_.end() ? nullptr : it->second;
  }

 private:
  static std::string Key(const SharedEventName& name) {
    return std::string(name.bytes, sizeof(name.bytes));
  }

  absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<Made>> made_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::unique_ptr<CudaSharedEvent>> CudaSharedEvent::Create(PrimaryContext* context) {
  RETURN_IF_ERROR(context->Use());
  ASSIGN_OR_RETURN(CudaEventHandle* const handle, context->api()->EventCreateInterprocess());
  auto event = absl::WrapUnique(new CudaSharedEvent(context, handle));
  ASSIGN_OR_RETURN(const CudaIpcEventHandle name, context->api()->IpcGetEventHandle(handle));
  memcpy(event->name_.bytes, name.bytes, sizeof(name.bytes));
  // Shared with those that open it here: it may be destroyed while they query it.
  event->made_ = std::make_shared<Made>(handle);
  Registry::OfThisProcess().Add(event->name_, event->made_);
  return event;
}

absl::StatusOr<std::unique_ptr<CudaSharedEvent>> CudaSharedEvent::Open(
    PrimaryContext* context, const SharedEventName& name) {
  const absl::Status used = context->Use();
  if (!context->Check(used)) return used;
  std::unique_ptr<CudaSharedEvent> event;
  // The driver opens no event in the process that made it, so the registry is asked first.
  if (std::shared_ptr<Made> made = Registry::OfThisProcess().Find(name); made != nullptr) {
    event = absl::WrapUnique(new CudaSharedEvent(context, /*handle=*/nullptr));
    event->made_ = std::move(made);
  } else {
    CudaIpcEventHandle of_cuda;
    memcpy(of_cuda.bytes, name.bytes, sizeof(name.bytes));
    const absl::StatusOr<CudaEventHandle*> handle = context->api()->IpcOpenEventHandle(of_cuda);
    if (!handle.ok()) {
      return absl::UnavailableError(
          absl::StrCat("an event of another process: ", handle.status().message()));
    }
    event = absl::WrapUnique(new CudaSharedEvent(context, *handle));
  }
  event->name_ = name;
  return event;
}

CudaSharedEvent::~CudaSharedEvent() {
  if (handle_ == nullptr) return;  // Its maker's.
  if (made_ != nullptr) {
    // Not found any more, before the handle is null: no one opens it meanwhile.
    Registry::OfThisProcess().Remove(name_);
    // Waits for a query that is under way on another thread.
    absl::MutexLock lock(&made_->mu);
    made_->handle = nullptr;
  }
  absl::Status status = context_->Use();
  status.Update(context_->api()->EventDestroy(handle_));
  // The creator may be gone, and the driver promises nothing then: not a reason to treat the device
  // as broken.
  if (!status.ok()) TESSERA_LOG(WARNING, "a shared event was not released: {}", status.ToString());
}

absl::StatusOr<bool> CudaSharedEvent::Query() {
  if (handle_ != nullptr) return QueryHandle(handle_);
  absl::MutexLock lock(&made_->mu);  // Its creator destroys it after this.
  if (made_->handle == nullptr)
    return absl::UnavailableError("an event of this process, which has destroyed it");
  return QueryHandle(made_->handle);
}

absl::StatusOr<bool> CudaSharedEvent::QueryHandle(CudaEventHandle* handle) {
  const absl::Status used = context_->Use();
  if (!context_->Check(used)) return used;
  const absl::StatusOr<bool> reached = context_->api()->EventQuery(handle);
  context_->Check(reached.status());
  return reached;
}

}  // namespace tessera
