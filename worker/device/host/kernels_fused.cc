// ReduceAdamStep: the other kernels, block by block. The block is that in which squares are summed
// (see measured_sum.h), so that the sum of the blocks has the bits of the sum of the whole.
#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "base/check.h"
#include "worker/device/host/kernels.h"
#include "worker/device/measured_sum.h"

namespace tessera {
namespace host {
namespace {

constexpr int64_t kBlockElements = kMeasureBlockElements;

template <typename T>
T* Advance(T* pointer, int64_t elements) {
  return pointer == nullptr ? nullptr : pointer + elements;
}

}  // namespace

void ReduceAdamStep(absl::Span<const void* const> inputs_by_rank, DType input_dtype, float scale,
                    const AdamParams& params, int64_t count, const float* p_in, const float* m_in,
                    const float* v_in, float* p_out, float* m_out, float* v_out,
                    float* publish_fp32, HalfOutput publish_half, GradientStats* stats) {
  TESSERA_CHECK(count >= 0);
  alignas(128) float gradient[kBlockElements];
  absl::InlinedVector<const void*, 16> inputs(inputs_by_rank.begin(), inputs_by_rank.end());
  GroupedSum<Measured::kSquares> squares;
  bool non_finite = false;
  for (int64_t begin = 0; begin < count; begin += kBlockElements) {
    const int64_t size = std::min(kBlockElements, count - begin);
    for (size_t r = 0; r < inputs.size(); ++r) {
      inputs[r] = static_cast<const char*>(inputs_by_rank[r]) + begin * SizeBytes(input_dtype);
    }
    GradientStats block;
    ReduceSlices(inputs, input_dtype, size, scale, /*accumulate=*/false, gradient,
                 stats == nullptr ? nullptr : &block);
    squares.AddBlock(block.sum_of_squares);
    non_finite |= block.non_finite;
    AdamStep(params, size, gradient, p_in + begin, m_in + begin, v_in + begin, p_out + begin,
             m_out + begin, v_out + begin, Advance(publish_fp32, begin),
             {Advance(publish_half.to, begin), publish_half.dtype});
  }
  if (stats != nullptr) *stats = {squares.Total(), non_finite};
}

}  // namespace host
}  // namespace tessera
