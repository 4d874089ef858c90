#include "worker/device/cuda/cuda_device.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/cuda_stream.h"

namespace tessera {
namespace {

CudaAddress Address(const void* pointer) { return reinterpret_cast<CudaAddress>(pointer); }

}  // namespace

int StreamPriority(absl::string_view name, bool gathers_go_first, CudaPriorityRange range) {
  const bool gathers = name == "pre-unshard" || name == "unshard" || name == "post-backward";
  // Lower numbers go first.
  return std::clamp(gathers_go_first && gathers ? -1 : 0, range.greatest, range.least);
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(CudaApi* api,
                                                               const Options& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<PrimaryContext> context,
                   PrimaryContext::Create(api, options.device, options.min_driver_version));
  ASSIGN_OR_RETURN(const CudaPriorityRange priorities, api->CtxGetStreamPriorityRange());
  return absl::WrapUnique(new CudaDevice(std::move(context), priorities));
}

absl::Status CudaDevice::OutOfMemory(const absl::Status& status, int64_t size_bytes) const {
  return Annotate(NameWantedMemory(context_->api(), status, size_bytes), name());
}

absl::StatusOr<Buffer> CudaDevice::Allocate(int64_t size_bytes) {
  if (size_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot allocate ", size_bytes, " bytes"));
  }
  if (size_bytes == 0) return Buffer();
  RETURN_IF_ERROR(Annotate(context_->Use(), name()));
  const absl::StatusOr<CudaAddress> address = context_->api()->MemAlloc(size_bytes);
  // The caller's error alone: nothing is void after it, and the device goes on (docs/adr/0040).
  if (!address.ok()) return OutOfMemory(address.status(), size_bytes);
  // Let go on any thread, so the context is made current there first.
  return Buffer(reinterpret_cast<void*>(*address), size_bytes,
                [context = context_.get(), address = *address] {
                  context->Check(context->Use());
                  context->Check(context->api()->MemFree(address));
                });
}

absl::StatusOr<Buffer> CudaDevice::AllocatePinned(int64_t size_bytes) {
  if (size_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot pin ", size_bytes, " bytes"));
  }
  if (size_bytes == 0) return Buffer();
  RETURN_IF_ERROR(Annotate(context_->Use(), name()));
  const absl::StatusOr<void*> memory = context_->api()->MemHostAlloc(size_bytes);
  if (!memory.ok()) return OutOfMemory(memory.status(), size_bytes);
  return Buffer(*memory, size_bytes, [context = context_.get(), memory = *memory] {
    context->Check(context->Use());
    context->Check(context->api()->MemFreeHost(memory));
  });
}

absl::StatusOr<Buffer> CudaDevice::Pin(void* memory, int64_t size_bytes) {
  // Registering nothing is an error of the driver.
  if (size_bytes == 0) return Buffer();
  RETURN_IF_ERROR(Annotate(context_->Use(), name()));
  const absl::Status pinned = context_->api()->MemHostRegister(memory, size_bytes);
  if (!pinned.ok())
    return Annotate(pinned, absl::StrCat(name(), ": ", size_bytes, " bytes to pin"));
  return Buffer(memory, size_bytes, [context = context_.get(), memory] {
    context->Check(context->Use());
    context->Check(context->api()->MemHostUnregister(memory));
  });
}

absl::StatusOr<std::unique_ptr<Stream>> CudaDevice::CreateStream(absl::string_view name) {
  return CudaStream::Create(context_.get(), name, PriorityOf(name));
}

absl::StatusOr<std::unique_ptr<Event>> CudaDevice::CreateEvent() {
  return CudaEvent::Create(context_.get());
}

void CudaDevice::Copy(Stream* stream, void* dst, const void* src, int64_t size_bytes) {
  if (size_bytes <= 0 || !context_->Check(context_->Use())) return;
  context_->Check(context_->api()->MemcpyAsync(Address(dst), Address(src), size_bytes,
                                               static_cast<CudaStream*>(stream)->handle()));
}

void CudaDevice::Fill(Stream* stream, void* dst, uint8_t value, int64_t size_bytes) {
  if (size_bytes <= 0 || !context_->Check(context_->Use())) return;
  context_->Check(context_->api()->MemsetD8Async(Address(dst), value, size_bytes,
                                                 static_cast<CudaStream*>(stream)->handle()));
}

}  // namespace tessera
