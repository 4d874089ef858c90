// Where kernels and collectives run: memory, and streams of work over it. The layer below RankDevice
// (rank_device.h).
//
// Streams and events belong to the device that made them and are not mixed with another's. The
// device outlives them and its buffers. Sizes are BYTES. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_DEVICE_H_
#define TESSERA_WORKER_DEVICE_DEVICE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/device/buffer.h"
#include "worker/device/event.h"
#include "worker/device/stream.h"

namespace tessera {

class Device {
 public:
  // Buffers start on a multiple of this, so that each shard does (see ShardMap).
  static constexpr int64_t kAlignmentBytes = 128;

  virtual ~Device() = default;

  virtual absl::string_view name() const = 0;  // "host", "cuda:0"; for logs.

  // Memory with undefined content. Zero bytes give an empty buffer.
  // Errors: InvalidArgument    size_bytes < 0
  //         ResourceExhausted  no memory is left
  virtual absl::StatusOr<Buffer> Allocate(int64_t size_bytes) = 0;

  // `name` is that of the stream's thread and of its row in traces (15 characters are kept).
  // Errors: ResourceExhausted  no thread or queue can be made
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name) = 0;

  // Errors: ResourceExhausted  no event can be made
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;

  // Enqueues on `stream` a copy between two runs that do not overlap, each of this device or of
  // the host.
  virtual void Copy(Stream* stream, void* dst, const void* src, int64_t size_bytes) = 0;

  // Enqueues on `stream` the writing of `value` to each byte.
  virtual void Fill(Stream* stream, void* dst, uint8_t value, int64_t size_bytes) = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_DEVICE_H_
