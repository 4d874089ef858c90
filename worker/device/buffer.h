// Owns a run of device memory; gives it back when destroyed. Move-only, thread-compatible.
// Work that uses the memory must be complete before its buffer is destroyed.
#ifndef TESSERA_WORKER_DEVICE_BUFFER_H_
#define TESSERA_WORKER_DEVICE_BUFFER_H_

#include <cstdint>
#include <utility>

#include "absl/functional/any_invocable.h"

namespace tessera {

class Buffer {
 public:
  Buffer() = default;
  // Calls `release` once, when the memory is given back.
  Buffer(void* data, int64_t size_bytes, absl::AnyInvocable<void()> release)
      : data_(data), size_bytes_(size_bytes), release_(std::move(release)) {}
  ~Buffer() { Reset(); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this == &other) return *this;
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    release_ = std::exchange(other.release_, nullptr);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }  // An address of the device, not always of this process.
  template <typename T>
  T* data_as() const {
    return static_cast<T*>(data_);
  }
  int64_t size_bytes() const { return size_bytes_; }
  bool empty() const { return size_bytes_ == 0; }

  void Reset() {
    if (release_ != nullptr) std::exchange(release_, nullptr)();
    data_ = nullptr;
    size_bytes_ = 0;
  }

 private:
  void* data_ = nullptr;
  int64_t size_bytes_ = 0;
  absl::AnyInvocable<void()> release_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_BUFFER_H_
