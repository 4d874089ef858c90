// Bytes that are to be written and are asked for piece by piece, as each is: what has them may move
// them meanwhile. Thread-compatible.
#ifndef TESSERA_CHECKPOINT_STORAGE_BYTE_SOURCE_H_
#define TESSERA_CHECKPOINT_STORAGE_BYTE_SOURCE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace tessera {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual int64_t size_bytes() const = 0;
  // The next bytes, each once and in order: where they stay until the next call, or else `room`,
  // which has as many and to which they were copied.
  virtual const char* Take(int64_t size_bytes, char* room) = 0;
};

// Of memory that stays as it is; not owned.
class MemoryBytes final : public ByteSource {
 public:
  explicit MemoryBytes(absl::string_view bytes) : bytes_(bytes) {}
  int64_t size_bytes() const override { return static_cast<int64_t>(bytes_.size()); }
  const char* Take(int64_t size_bytes, char* /*room*/) override {
    const char* const taken = bytes_.data() + taken_bytes_;
    taken_bytes_ += size_bytes;
    return taken;
  }

 private:
  const absl::string_view bytes_;
  int64_t taken_bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_STORAGE_BYTE_SOURCE_H_
