#include "worker/device/host/host_device.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/device/host/host_event.h"
#include "worker/device/host/host_stream.h"

namespace tessera {
namespace {

int64_t PhysicalMemoryBytes() {
  return int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)};
}

}  // namespace

absl::StatusOr<Buffer> HostDevice::Allocate(int64_t size_bytes) {
  if (size_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot allocate ", size_bytes, " bytes"));
  }
  if (size_bytes == 0) return Buffer();
  // The system would promise more than it has, and end the process when it is touched.
  static const int64_t physical_bytes = PhysicalMemoryBytes();
  void* data = nullptr;
  if (size_bytes > physical_bytes ||
      posix_memalign(&data, kAlignmentBytes, static_cast<size_t>(size_bytes)) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no host memory for ", size_bytes, " bytes"));
  }
  return Buffer(data, size_bytes, [data] { std::free(data); });
}

absl::StatusOr<std::unique_ptr<Stream>> HostDevice::CreateStream(absl::string_view name) {
  return HostStream::Create(name);
}

absl::StatusOr<std::unique_ptr<Event>> HostDevice::CreateEvent() {
  return std::make_unique<HostEvent>();
}

void HostDevice::Copy(Stream* stream, void* dst, const void* src, int64_t size_bytes) {
  // The pointers must stay until the work is done (see Device).
  stream->Enqueue([dst, src, size_bytes] {
    if (size_bytes > 0) std::memcpy(dst, src, static_cast<size_t>(size_bytes));
  });
}

void HostDevice::Fill(Stream* stream, void* dst, uint8_t value, int64_t size_bytes) {
  stream->Enqueue([dst, value, size_bytes] {
    if (size_bytes > 0) std::memset(dst, value, static_cast<size_t>(size_bytes));
  });
}

}  // namespace tessera
