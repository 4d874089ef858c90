// Which slices of a tensor, held in several places, make it up: each element exactly once.
//
//   a [0, 4)   b [4, 8)   c [4, 8)  ──►  a, b        b and c hold the same, so one is enough
//   a [0, 4)   b [5, 8)             ──►  refused: [4, 5) is nowhere
//   a [0, 4)   b [3, 8)             ──►  refused: [3, 4) is in a and in b
//
// Pure; thread-safe.
#ifndef TESSERA_CHECKPOINT_PARTS_SLICE_COVER_H_
#define TESSERA_CHECKPOINT_PARTS_SLICE_COVER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace tessera {

struct HeldSlice {
  int holder = 0;
  int64_t begin_elements = 0, count = 0;
  uint32_t crc32 = 0;  // Of its bytes.
};

// The slices to take, by where they begin; none is empty. `holder_name`: for errors.
// Errors, which name the tensor, the range and its holder:
//   InvalidArgument  a hole, an overlap that is not a replica, or a slice outside of the tensor
//   DataLoss         two hold the same range, with different checksums.
absl::StatusOr<std::vector<HeldSlice>> CoverOnce(
    const std::string& tensor, int64_t numel, std::vector<HeldSlice> slices,
    absl::FunctionRef<std::string(int holder)> holder_name);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_PARTS_SLICE_COVER_H_
