// Where in a bank of a job's memory the buffers of its model are: see
// shm/buffer_memory.h. Pure arithmetic. A plain value.
#ifndef TESSERA_JOB_BUFFER_PLACEMENT_H_
#define TESSERA_JOB_BUFFER_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/tensor_spec.h"

namespace tessera {

class BufferPlacement {
 public:
  BufferPlacement() = default;
  // Errors: as SizeBytes; InvalidArgument  together they overflow.
  static absl::StatusOr<BufferPlacement> Of(const std::vector<BufferSpec>& buffers);

  int size() const { return static_cast<int>(places_.size()); }
  bool empty() const { return places_.empty(); }
  int64_t offset_bytes(int buffer) const { return places_[buffer].offset_bytes; }  // In its bank.
  int64_t size_bytes(int buffer) const { return places_[buffer].size_bytes; }
  int64_t bank_bytes() const { return bank_bytes_; }  // Whole pages; 0: no buffers.

 private:
  struct Place {
    int64_t offset_bytes = 0, size_bytes = 0;
  };
  std::vector<Place> places_;
  int64_t bank_bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_JOB_BUFFER_PLACEMENT_H_
