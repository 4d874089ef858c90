// The arithmetic of ReduceScatterMapped: some parts of a slice, each in place.
//
//   slice  | ...... | part | .... | part | .. |      the rest is neither read nor written
//   packed          | part | part |                  how sums travel between hosts
//
// Thread-safe over disjoint outputs and kernels.
#ifndef TESSERA_WORKER_COMM_REDUCE_PARTS_H_
#define TESSERA_WORKER_COMM_REDUCE_PARTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "layout/dtype.h"
#include "layout/shard_map.h"
#include "worker/device/rank_kernels.h"

namespace tessera {

// A part of the slice: its elements in the unsharded buffer, and how many of the slice's parts are
// before it.
struct SlicePart {
  ElementRange range;
  int64_t packed_elements = 0;
};

struct PartsReduction {
  absl::Span<const ElementRange> parts;  // Ascending, disjoint; may reach out of the slice.
  ElementRange slice;
  DType dtype = DType::kFp32;
  double scale = 1.0;
  bool accumulate = false;
};

// As host::ReduceSlices for each part, of `inputs->size()` inputs, by `kernels`, which know the
// memory. input(i, part) is the address of the part's elements of input i, output(part) where they
// go. `inputs` is room for pointers. `stats`, if not null, is set to the measure of all parts.
// Waits.
// Errors: those of RankKernels::Finish
template <typename Input, typename Output>
absl::Status ReduceParts(RankKernels* kernels, const PartsReduction& reduction,
                         std::vector<const void*>* inputs, Input input, Output output,
                         host::GradientStats* stats) {
  SlicePart part;
  for (const ElementRange& whole : reduction.parts) {
    part.range = Intersect(whole, reduction.slice);
    if (part.range.empty()) continue;
    for (size_t i = 0; i < inputs->size(); ++i) (*inputs)[i] = input(i, part);
    kernels->Reduce(*inputs, reduction.dtype, part.range.size(), reduction.scale,
                    reduction.accumulate, output(part), stats != nullptr);
    part.packed_elements += part.range.size();
  }
  return stats == nullptr ? kernels->Finish() : kernels->TakeStats(stats);
}

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_REDUCE_PARTS_H_
