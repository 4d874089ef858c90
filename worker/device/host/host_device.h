// The CPU as a device: memory of this process, streams that are threads. The reference that other
// back-ends are tested against; executors use HostStream alone.
#ifndef TESSERA_WORKER_DEVICE_HOST_HOST_DEVICE_H_
#define TESSERA_WORKER_DEVICE_HOST_HOST_DEVICE_H_

#include <memory>

#include "worker/device/device.h"

namespace tessera {

class HostDevice : public Device {
 public:
  absl::string_view name() const override { return "host"; }
  absl::StatusOr<Buffer> Allocate(int64_t size_bytes) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name) override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;
  void Copy(Stream* stream, void* dst, const void* src, int64_t size_bytes) override;
  void Fill(Stream* stream, void* dst, uint8_t value, int64_t size_bytes) override;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_HOST_HOST_DEVICE_H_
