#include "kernels/element_reduce.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/narrow_floats.h"

namespace tessera {
namespace host {
namespace {

// Sums on their way to a narrower type: within the first-level cache.
constexpr int64_t kBlockElements = 1024;

// Calls `body` with a null pointer of the type's element.
template <typename Body>
void ByElement(ElementType type, Body body) {
  if (type == Fp8Format::kE4M3) return body(static_cast<narrow::Fp8E4M3*>(nullptr));
  if (type == Fp8Format::kE5M2) return body(static_cast<narrow::Fp8E5M2*>(nullptr));
  if (type == DType::kBf16) return body(static_cast<narrow::Bf16*>(nullptr));
  if (type == DType::kFp16) return body(static_cast<narrow::Fp16*>(nullptr));
  if (type == DType::kFp64) return body(static_cast<double*>(nullptr));
  TESSERA_CHECK(type == DType::kFp32);
  body(static_cast<float*>(nullptr));
}

template <typename T>
T At(const void* input, int64_t i) {
  return static_cast<const T*>(input)[i];
}

template <typename Fp8>
void SumFp8(absl::Span<const void* const> inputs, int64_t count, float scale, bool accumulate,
            float* output) {
  // In rank order and fp32, scaled once after the sum (docs/adr/0047): equal bits on every rank.
  for (int64_t i = 0; i < count; ++i) {
    float sum = narrow::Widen(At<Fp8>(inputs[0], i));
    for (size_t r = 1; r < inputs.size(); ++r) sum += narrow::Widen(At<Fp8>(inputs[r], i));
    sum *= scale;
    output[i] = accumulate ? output[i] + sum : sum;
  }
}

template <typename T>
void SelectAll(absl::Span<const void* const> inputs, bool larger, int64_t count, T* output) {
  for (int64_t i = 0; i < count; ++i) {
    T value = At<T>(inputs[0], i);
    for (size_t r = 1; r < inputs.size(); ++r)
      value = narrow::Select(larger, value, At<T>(inputs[r], i));
    output[i] = value;
  }
}

void Round(ElementType type, const float* sums, int64_t count, void* output) {
  if (!type.is_fp8()) {
    return CastFp32ToHalf(type.dtype(), sums, static_cast<uint16_t*>(output), count);
  }
  ByElement(type, [&](auto* element) {
    auto* const to = static_cast<decltype(element)>(output);
    for (int64_t i = 0; i < count; ++i) narrow::Narrow(sums[i], to + i);
  });
}

// Block by block, so that `output` may be one of the inputs: a block is written once it was read.
void SumNarrow(absl::Span<const void* const> inputs, ElementType type, double scale, int64_t count,
               void* output) {
  const int64_t element_bytes = SizeBytes(type);
  std::vector<const void*> from(inputs.size());
  float sums[kBlockElements];
  for (int64_t begin = 0; begin < count; begin += kBlockElements) {
    const int64_t now = std::min(kBlockElements, count - begin);
    for (size_t r = 0; r < inputs.size(); ++r)
      from[r] = static_cast<const char*>(inputs[r]) + begin * element_bytes;
    // In fp32 over all ranks, so that a value is rounded to the narrow type only once.
    SumElements(from, type, now, scale, false, sums, nullptr);
    Round(type, sums, now, static_cast<char*>(output) + begin * element_bytes);
  }
}

}  // namespace

void SumElements(absl::Span<const void* const> inputs, ElementType input, int64_t count,
                 double scale, bool accumulate, SumOutput output, GradientStats* stats) {
  if (!input.is_fp8()) {
    return ReduceSlices(inputs, input.dtype(), count, scale, accumulate, output, stats);
  }
  TESSERA_CHECK(!inputs.empty() && output.dtype == DType::kFp32);
  auto* const to = static_cast<float*>(output.data);
  const auto factor = static_cast<float>(scale);
  if (input == Fp8Format::kE4M3) {
    SumFp8<narrow::Fp8E4M3>(inputs, count, factor, accumulate, to);
  } else {
    SumFp8<narrow::Fp8E5M2>(inputs, count, factor, accumulate, to);
  }
  if (stats != nullptr) *stats = MeasureGradient(to, count);
}

void CombineElements(absl::Span<const void* const> inputs, ElementType type, ReduceOp op,
                     double scale, int64_t count, void* output) {
  TESSERA_CHECK(!inputs.empty());
  if (op != ReduceOp::kSum) {
    ByElement(type, [&](auto* element) {
      SelectAll(inputs, op == ReduceOp::kMax, count, static_cast<decltype(element)>(output));
    });
  } else if (type == DType::kFp32 || type == DType::kFp64) {
    ReduceSlices(inputs, type.dtype(), count, scale, false, {output, type.dtype()}, nullptr);
  } else {
    SumNarrow(inputs, type, scale, count, output);
  }
}

}  // namespace host
}  // namespace tessera
