// ReduceSlices, MeasureGradient, Accumulate.
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "kernels/kernels.h"
#include "kernels/measured_sum.h"

// foreach_target includes this file once for each target. The constants must be defined once.
#ifndef TESSERA_KERNELS_REDUCE_BLOCK_
#define TESSERA_KERNELS_REDUCE_BLOCK_
namespace tessera {
namespace host {
namespace {

constexpr size_t kBlockElements = kMeasureBlockElements;

using SumOfSquaresOfBlocks = GroupedSum<Measured::kSquares>;

inline size_t BlockSize(size_t left) { return left < kBlockElements ? left : kBlockElements; }

}  // namespace
}  // namespace host
}  // namespace tessera
#endif  // TESSERA_KERNELS_REDUCE_BLOCK_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kernels_reduce.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace host {
namespace HWY_NAMESPACE {

// One vector of the output, at element `i`.
template <typename T, class D>
HWY_INLINE void ReduceVector(D d, const void* const* inputs, size_t num_inputs, size_t i,
                             hn::Vec<D> scale, bool accumulate, float* output) {
  auto sum = LoadFloat(d, static_cast<const T*>(inputs[0]) + i);
  // In rank order, one addition after the other: the bits are the same on every rank and target.
  for (size_t r = 1; r < num_inputs; ++r) {
    sum = hn::Add(sum, LoadFloat(d, static_cast<const T*>(inputs[r]) + i));
  }
  sum = hn::Mul(sum, scale);
  if (accumulate) sum = hn::Add(hn::LoadU(d, output + i), sum);
  hn::StoreU(sum, d, output + i);
}

template <typename T>
HWY_INLINE void PrefetchFour(const T* from, size_t lanes) {
  for (size_t k = 0; k < 4; ++k) PrefetchAhead(from + k * lanes);
}

// Four vectors side by side: a run of lines of each input at a time keeps the streams apart.
template <typename T, class D>
HWY_INLINE void ReduceFourVectors(D d, const void* const* inputs, size_t num_inputs, size_t i,
                                  hn::Vec<D> scale, bool accumulate, float* output) {
  const size_t n = hn::Lanes(d);
  const T* first = static_cast<const T*>(inputs[0]) + i;
  PrefetchFour(first, n);
  auto s0 = LoadFloat(d, first);
  auto s1 = LoadFloat(d, first + n);
  auto s2 = LoadFloat(d, first + 2 * n);
  auto s3 = LoadFloat(d, first + 3 * n);
  for (size_t r = 1; r < num_inputs; ++r) {
    const T* next = static_cast<const T*>(inputs[r]) + i;
    PrefetchFour(next, n);
    s0 = hn::Add(s0, LoadFloat(d, next));
    s1 = hn::Add(s1, LoadFloat(d, next + n));
    s2 = hn::Add(s2, LoadFloat(d, next + 2 * n));
    s3 = hn::Add(s3, LoadFloat(d, next + 3 * n));
  }
  float* out = output + i;
  PrefetchFour(out, n);
  s0 = hn::Mul(s0, scale);
  s1 = hn::Mul(s1, scale);
  s2 = hn::Mul(s2, scale);
  s3 = hn::Mul(s3, scale);
  if (accumulate) {
    s0 = hn::Add(hn::LoadU(d, out), s0);
    s1 = hn::Add(hn::LoadU(d, out + n), s1);
    s2 = hn::Add(hn::LoadU(d, out + 2 * n), s2);
    s3 = hn::Add(hn::LoadU(d, out + 3 * n), s3);
  }
  hn::StoreU(s0, d, out);
  hn::StoreU(s1, d, out + n);
  hn::StoreU(s2, d, out + 2 * n);
  hn::StoreU(s3, d, out + 3 * n);
}

template <typename T>
HWY_INLINE void ReduceRange(const void* const* inputs, size_t num_inputs, size_t begin, size_t end,
                            float scale, bool accumulate, float* output) {
  const FullTag d;
  const OneTag one;
  const size_t n = hn::Lanes(d);
  const auto scales = hn::Set(d, scale);
  const auto scale_one = hn::Set(one, scale);
  size_t i = begin;
  for (; i + 4 * n <= end; i += 4 * n) {
    ReduceFourVectors<T>(d, inputs, num_inputs, i, scales, accumulate, output);
  }
  for (; i + n <= end; i += n) {
    ReduceVector<T>(d, inputs, num_inputs, i, scales, accumulate, output);
  }
  // On one lane of the same code: an element's bits must not depend on where its slice ends.
  for (; i < end; ++i) {
    ReduceVector<T>(one, inputs, num_inputs, i, scale_one, accumulate, output);
  }
}

// Measures each block while it is still in the first-level cache.
template <typename T>
HWY_INLINE double ReduceAndMeasure(const void* const* inputs, size_t num_inputs, size_t count,
                                   float scale, bool accumulate, float* output) {
  SumOfSquaresOfBlocks squares;
  // The blocks are those of the sum's definition (docs/adr/0037), not a matter of speed alone.
  for (size_t begin = 0; begin < count; begin += kBlockElements) {
    const size_t end = begin + BlockSize(count - begin);
    ReduceRange<T>(inputs, num_inputs, begin, end, scale, accumulate, output);
    squares.AddBlock(SquaresOfBlock(output + begin, end - begin));
  }
  return squares.Total();
}

template <typename T>
HWY_INLINE void ReduceAs(const void* const* inputs, size_t num_inputs, size_t count, float scale,
                         bool accumulate, float* output, double* squares) {
  if (squares == nullptr) {
    ReduceRange<T>(inputs, num_inputs, 0, count, scale, accumulate, output);
  } else {
    *squares = ReduceAndMeasure<T>(inputs, num_inputs, count, scale, accumulate, output);
  }
}

void Reduce(const void* const* inputs, size_t num_inputs, DType dtype, size_t count, float scale,
            bool accumulate, float* output, double* squares) {
  if (dtype == DType::kFp16) {
    ReduceAs<Fp16>(inputs, num_inputs, count, scale, accumulate, output, squares);
  } else if (dtype == DType::kBf16) {
    ReduceAs<uint16_t>(inputs, num_inputs, count, scale, accumulate, output, squares);
  } else {
    ReduceAs<float>(inputs, num_inputs, count, scale, accumulate, output, squares);
  }
}

double SumOfSquares(const float* values, size_t count) {
  SumOfSquaresOfBlocks squares;
  // In the blocks of ReduceAndMeasure: a norm's bits must not depend on which of the two ran.
  for (size_t begin = 0; begin < count; begin += kBlockElements) {
    squares.AddBlock(SquaresOfBlock(values + begin, BlockSize(count - begin)));
  }
  return squares.Total();
}

void Add(float* dst, const float* src, size_t count) {
  const FullTag d;
  const OneTag one;
  const size_t n = hn::Lanes(d);
  size_t i = 0;
  for (; i + n <= count; i += n) {
    hn::StoreU(hn::Add(hn::LoadU(d, dst + i), hn::LoadU(d, src + i)), d, dst + i);
  }
  for (; i < count; ++i) {
    hn::StoreU(hn::Add(hn::LoadU(one, dst + i), hn::LoadU(one, src + i)), one, dst + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace host
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace host {

HWY_EXPORT(Reduce);
HWY_EXPORT(SumOfSquares);
HWY_EXPORT(Add);

namespace {

// A square of a finite float is finite in double, and so is any sum of them: the sum is finite
// exactly when every element was.
GradientStats StatsOf(double squares) {
  GradientStats stats;
  stats.sum_of_squares = squares;
  stats.non_finite = !std::isfinite(squares);
  return stats;
}

}  // namespace

void ReduceSlices(absl::Span<const void* const> inputs_by_rank, DType input_dtype, int64_t count,
                  double scale, bool accumulate, SumOutput output, GradientStats* stats) {
  if (output.dtype == DType::kFp64) {
    return ReduceSlicesToFp64(inputs_by_rank, input_dtype, count, scale, accumulate,
                              static_cast<double*>(output.data), stats);
  }
  TESSERA_CHECK(!inputs_by_rank.empty());
  TESSERA_CHECK(input_dtype == DType::kFp32 || IsHalf(input_dtype));
  TESSERA_CHECK(count >= 0);
  double squares = 0;
  HWY_DYNAMIC_DISPATCH(Reduce)
  (inputs_by_rank.data(), inputs_by_rank.size(), input_dtype, static_cast<size_t>(count),
   static_cast<float>(scale), accumulate, static_cast<float*>(output.data),
   stats == nullptr ? nullptr : &squares);
  if (stats != nullptr) *stats = StatsOf(squares);
}

GradientStats MeasureGradient(const float* gradient, int64_t count) {
  TESSERA_CHECK(count >= 0);
  return StatsOf(HWY_DYNAMIC_DISPATCH(SumOfSquares)(gradient, static_cast<size_t>(count)));
}

void Accumulate(float* dst, const float* src, int64_t count) {
  TESSERA_CHECK(count >= 0);
  HWY_DYNAMIC_DISPATCH(Add)(dst, src, static_cast<size_t>(count));
}

}  // namespace host
}  // namespace tessera
#endif  // HWY_ONCE
