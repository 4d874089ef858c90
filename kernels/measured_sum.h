// How what is measured of a gradient is added up, on CPUs and GPUs alike, so that all get the same
// bits: in double, and in an order that thousands of threads can follow.
//
//   element i of a block  ──► lane i mod 16         a block: 2048 elements
//   its lanes, in order   ──► the block's sum
//   256 blocks, in order  ──► a group's sum
//   the groups, in order  ──► the sum
//
// What is added up is a term of each element: for a p-norm |x|^p, for that of infinity |x|, of
// which the largest is taken. A NaN stays whatever it meets, as an infinity does.
//
// For p = 1, p = 2 and infinity a CPU and a GPU get the same bits. Other powers are the C library's
// pow() on the one and CUDA's on the other: each term is within a unit in the last place on both,
// and no more is promised of the sum. Includes nothing but what nvcc has. Pure; thread-safe.
#ifndef TESSERA_KERNELS_MEASURED_SUM_H_
#define TESSERA_KERNELS_MEASURED_SUM_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#define TESSERA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TESSERA_HOST_DEVICE inline
#endif

namespace tessera {

constexpr int64_t kMeasureBlockElements = 2048;
constexpr int kMeasureLanes = 16;
constexpr int kMeasureGroupBlocks = 256;

constexpr int64_t MeasureBlocksOf(int64_t count) {
  return (count + kMeasureBlockElements - 1) / kMeasureBlockElements;
}
constexpr int64_t MeasureGroupsOf(int64_t num_blocks) {
  return (num_blocks + kMeasureGroupBlocks - 1) / kMeasureGroupBlocks;
}

enum class Measured { kMagnitudes, kSquares, kPowers, kLargest };

// Calls `body` with what is measured for the p-norm, as a type: std::integral_constant of it.
template <typename Body>
auto WithMeasured(double p, Body body) {
  if (p == 1) return body(std::integral_constant<Measured, Measured::kMagnitudes>());
  if (p == 2) return body(std::integral_constant<Measured, Measured::kSquares>());
  if (std::isinf(p)) return body(std::integral_constant<Measured, Measured::kLargest>());
  return body(std::integral_constant<Measured, Measured::kPowers>());
}

template <Measured what>
TESSERA_HOST_DEVICE double TermOf(double value, double p) {
  if (what == Measured::kSquares) return value * value;
  const double magnitude = fabs(value);
  return what == Measured::kPowers ? pow(magnitude, p) : magnitude;
}

template <Measured what>
TESSERA_HOST_DEVICE double AddTerm(double sum, double term) {
  if (what != Measured::kLargest) return sum + term;
  return term > sum || term != term ? term : sum;
}

// Takes sums of blocks, in order.
template <Measured what>
class GroupedSum {
 public:
  void AddBlock(double block) {
    group_ = AddTerm<what>(group_, block);
    if (++blocks_ < kMeasureGroupBlocks) return;
    total_ = AddTerm<what>(total_, group_);
    group_ = 0;
    blocks_ = 0;
  }
  double Total() const { return AddTerm<what>(total_, group_); }

 private:
  double total_ = 0;
  double group_ = 0;
  int blocks_ = 0;
};

// Of one block: at most kMeasureBlockElements.
template <Measured what, typename Real>
double SumOfBlock(const Real* values, int64_t count, double p) {
  double lanes[kMeasureLanes] = {};
  int64_t i = 0;
  for (; i + kMeasureLanes <= count; i += kMeasureLanes) {
    for (int k = 0; k < kMeasureLanes; ++k) {
      lanes[k] = AddTerm<what>(lanes[k], TermOf<what>(values[i + k], p));
    }
  }
  for (int k = 0; i + k < count; ++k) {
    lanes[k] = AddTerm<what>(lanes[k], TermOf<what>(values[i + k], p));
  }
  double sum = 0;
  for (const double lane : lanes) sum = AddTerm<what>(sum, lane);
  return sum;
}

// Of all, on the CPU.
template <Measured what, typename Real>
double MeasuredSum(const Real* values, int64_t count, double p) {
  GroupedSum<what> sum;
  for (int64_t begin = 0; begin < count; begin += kMeasureBlockElements) {
    const int64_t left = count - begin;
    sum.AddBlock(SumOfBlock<what>(values + begin,
                                  left < kMeasureBlockElements ? left : kMeasureBlockElements, p));
  }
  return sum.Total();
}

}  // namespace tessera

#endif  // TESSERA_KERNELS_MEASURED_SUM_H_
