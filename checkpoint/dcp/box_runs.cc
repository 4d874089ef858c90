#include "checkpoint/dcp/box_runs.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tessera::dcp {
namespace {

// The box as `num_runs` runs of `run_elements`: its last dimensions, as long as it spans the
// tensor's, and the one before them.
struct Runs {
  std::vector<int64_t> outer_sizes, outer_strides;
  int64_t first_elements = 0;  // Where run 0 begins in the tensor.
  int64_t run_elements = 1, num_runs = 1;

  int64_t BeginOf(int64_t run) const {
    int64_t begin = first_elements;
    for (size_t d = outer_sizes.size(); d-- > 0;) {
      begin += run % outer_sizes[d] * outer_strides[d];
      run /= outer_sizes[d];
    }
    return begin;
  }
};

Runs RunsOf(const std::vector<int64_t>& shape, const std::vector<int64_t>& offsets,
            const std::vector<int64_t>& sizes) {
  Runs runs;
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d];
    runs.first_elements += offsets[d] * strides[d];
  }
  size_t inner = shape.size();  // Dimensions from here on are in the run.
  bool spans = true;
  while (inner > 0 && spans) {
    --inner;
    runs.run_elements *= sizes[inner];
    // One dimension more: the first one that the box does not span still belongs to the run.
    spans = sizes[inner] == shape[inner];
  }
  for (size_t d = 0; d < inner; ++d) {
    runs.outer_sizes.push_back(sizes[d]);
    runs.outer_strides.push_back(strides[d]);
    runs.num_runs *= sizes[d];
  }
  return runs;
}

}  // namespace

absl::Status ForEachRun(const std::vector<int64_t>& shape, const std::vector<int64_t>& offsets,
                        const std::vector<int64_t>& sizes, int64_t begin_elements,
                        int64_t end_elements, absl::FunctionRef<absl::Status(const BoxRun&)> each) {
  // Callers have checked that the box is in the tensor and that its size does not overflow.
  const Runs runs = RunsOf(shape, offsets, sizes);
  // The first run that does not end before the range; they are in order.
  int64_t low = 0, high = runs.num_runs;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (runs.BeginOf(middle) + runs.run_elements <= begin_elements) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  for (int64_t run = low; run < runs.num_runs; ++run) {
    const int64_t run_begin = runs.BeginOf(run);
    if (run_begin >= end_elements) break;
    const int64_t begin = std::max(run_begin, begin_elements);
    const int64_t end = std::min(run_begin + runs.run_elements, end_elements);
    RETURN_IF_ERROR(each({begin, run * runs.run_elements + begin - run_begin, end - begin}));
  }
  return absl::OkStatus();
}

}  // namespace tessera::dcp
