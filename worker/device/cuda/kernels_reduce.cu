// Sums over ranks, the measure of a gradient, checksums.
#include "worker/device/cuda/kernels_common.cuh"

namespace tessera {
namespace gpu {
namespace {

template <typename T, typename Sum>
__global__ void Reduce(Inputs inputs, int64_t count, Sum scale, bool accumulate, Sum* output) {
  for (int64_t i = First(); i < count; i += Stride()) {
    Sum sum = static_cast<Sum>(Widen(static_cast<const T*>(inputs.at[0])[i]));
    for (int r = 1; r < inputs.count; ++r) {
      sum = sum + static_cast<Sum>(Widen(static_cast<const T*>(inputs.at[r])[i]));
    }
    sum = sum * scale;
    output[i] = accumulate ? output[i] + sum : sum;
  }
}

template <typename Real>
__global__ void Combine(Inputs inputs, int op, int64_t count, Real* output) {
  for (int64_t i = First(); i < count; i += Stride()) {
    Real value = static_cast<const Real*>(inputs.at[0])[i];
    for (int r = 1; r < inputs.count; ++r) {
      value = CombineElements(op, value, static_cast<const Real*>(inputs.at[r])[i]);
    }
    output[i] = value;
  }
}

// Sixteen threads a block of elements, one for each lane of the definition; the first of them adds
// the lanes in order.
template <Measured what, typename Real>
__global__ void MeasureBlocks(const Real* values, int64_t count, int64_t num_blocks, double p,
                              double* block_sums, bool* non_finite) {
  __shared__ double lanes[kThreads];
  constexpr int kBlocksAtOnce = kThreads / kMeasureLanes;
  const int lane = threadIdx.x % kMeasureLanes;
  for (int64_t first = int64_t{blockIdx.x} * kBlocksAtOnce; first < num_blocks;
       first += int64_t{gridDim.x} * kBlocksAtOnce) {
    const int64_t block = first + threadIdx.x / kMeasureLanes;
    const Real* const own = values + block * kMeasureBlockElements + lane;
    const int64_t left = count - block * kMeasureBlockElements - lane;
    double sum = 0;
    bool finite = true;
    const auto take = [&](Real value) {
      finite = finite && isfinite(value);
      sum = AddTerm<what>(sum, TermOf<what>(value, p));
    };
    // The whole row of a lane in one go, so that many loads are under way at once.
    if (left > kMeasureBlockElements - kMeasureLanes) {
#pragma unroll 16
      for (int i = 0; i < kMeasureBlockElements; i += kMeasureLanes) take(own[i]);
    } else {
      for (int64_t i = 0; i < left; i += kMeasureLanes) take(own[i]);
    }
    lanes[threadIdx.x] = sum;
    const bool any_non_finite = __syncthreads_or(!finite);
    if (threadIdx.x == 0 && any_non_finite && non_finite != nullptr) *non_finite = true;
    if (lane == 0 && block < num_blocks) {
      double total = 0;
      for (int k = 0; k < kMeasureLanes; ++k) {
        total = AddTerm<what>(total, lanes[threadIdx.x + k]);
      }
      block_sums[block] = total;
    }
    __syncthreads();
  }
}

// All threads of the block load; the first one adds in order, and has the sum.
template <Measured what>
__device__ double AddInOrder(const double* values, int64_t count) {
  __shared__ double piece[kThreads];
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kThreads) {
    if (begin + threadIdx.x < count) piece[threadIdx.x] = values[begin + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      if (count - begin >= kThreads) {
#pragma unroll 16
        for (int k = 0; k < kThreads; ++k) total = AddTerm<what>(total, piece[k]);
      } else {
        for (int k = 0; begin + k < count; ++k) total = AddTerm<what>(total, piece[k]);
      }
    }
    __syncthreads();
  }
  return total;
}

template <Measured what>
__global__ void AddGroups(const double* block_sums, int64_t num_blocks, double* group_sums) {
  for (int64_t begin = int64_t{blockIdx.x} * kMeasureGroupBlocks; begin < num_blocks;
       begin += int64_t{gridDim.x} * kMeasureGroupBlocks) {
    const int64_t left = num_blocks - begin;
    const double sum = AddInOrder<what>(block_sums + begin,
                                        left < kMeasureGroupBlocks ? left : kMeasureGroupBlocks);
    if (threadIdx.x == 0) group_sums[begin / kMeasureGroupBlocks] = sum;
  }
}

// One block of threads.
template <Measured what>
__global__ void AddUp(const double* sums, int64_t count, double* to) {
  const double total = AddInOrder<what>(sums, count);
  if (threadIdx.x == 0) *to = AddTerm<what>(*to, total);
}

template <Measured what, typename Real>
int MeasureAs(void* stream, const Real* values, int64_t count, double p, double* room, double* sum,
              bool* non_finite) {
  const int64_t num_blocks = MeasureBlocksOf(count);
  const int measured = Launch(stream, Blocks(num_blocks * kMeasureLanes), MeasureBlocks<what, Real>,
                              values, count, num_blocks, p, room, non_finite);
  if (measured != 0) return measured;
  const int64_t num_groups = MeasureGroupsOf(num_blocks);
  if (num_groups == 1) return Launch(stream, 1, AddUp<what>, room, num_blocks, sum);
  double* const group_sums = room + num_blocks;
  const int grouped =
      Launch(stream, Blocks(num_groups * kThreads), AddGroups<what>, room, num_blocks, group_sums);
  if (grouped != 0) return grouped;
  return Launch(stream, 1, AddUp<what>, group_sums, num_groups, sum);
}

template <typename Bits>
__global__ void Checksum(const Bits* values, int64_t count, uint64_t* sum) {
  uint64_t own = 0;
  for (int64_t i = First(); i < count; i += Stride()) own += ChecksumElement(i, values[i]);
  for (int offset = 16; offset > 0; offset /= 2) {
    own += __shfl_down_sync(0xFFFFFFFFu, static_cast<unsigned long long>(own), offset);
  }
  if (threadIdx.x % 32 == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(own));
  }
}

template <typename Bits>
int ChecksumOf(void* stream, const void* values, int64_t count, uint64_t* sum) {
  return Launch(stream, Blocks(count), Checksum<Bits>, static_cast<const Bits*>(values), count,
                sum);
}

}  // namespace

int LaunchReduce(void* stream, const Inputs& inputs, int input_dtype, int64_t count, double scale,
                 bool accumulate, int output_dtype, void* output) {
  return ByType(input_dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (output_dtype == 3) {
      return Launch(stream, Blocks(count), Reduce<T, double>, inputs, count, scale, accumulate,
                    static_cast<double*>(output));
    }
    return Launch(stream, Blocks(count), Reduce<T, float>, inputs, count, static_cast<float>(scale),
                  accumulate, static_cast<float*>(output));
  });
}

int LaunchCombine(void* stream, const Inputs& inputs, int dtype, int op, int64_t count,
                  void* output) {
  if (dtype == 3) {
    return Launch(stream, Blocks(count), Combine<double>, inputs, op, count,
                  static_cast<double*>(output));
  }
  return Launch(stream, Blocks(count), Combine<float>, inputs, op, count,
                static_cast<float*>(output));
}

int LaunchMeasure(void* stream, int dtype, const void* values, int64_t count, double p,
                  double* room, double* sum, bool* non_finite) {
  return WithMeasured(p, [&](auto measured) {
    constexpr Measured kWhat = decltype(measured)::value;
    if (dtype == 3) {
      return MeasureAs<kWhat>(stream, static_cast<const double*>(values), count, p, room, sum,
                              non_finite);
    }
    return MeasureAs<kWhat>(stream, static_cast<const float*>(values), count, p, room, sum,
                            non_finite);
  });
}

int LaunchChecksum(void* stream, const void* values, int element_bytes, int64_t count,
                   uint64_t* sum) {
  if (element_bytes == 2) return ChecksumOf<uint16_t>(stream, values, count, sum);
  if (element_bytes == 4) return ChecksumOf<uint32_t>(stream, values, count, sum);
  if (element_bytes == 8) return ChecksumOf<uint64_t>(stream, values, count, sum);
  return kInvalidValue;
}

}  // namespace gpu
}  // namespace tessera
