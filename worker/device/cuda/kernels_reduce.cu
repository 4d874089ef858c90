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
__global__ void MeasureBlocks(const float* values, int64_t count, int64_t num_blocks,
                              double* block_sums) {
  __shared__ double lanes[kThreads];
  constexpr int kGroups = kThreads / kStatsLanes;
  const int lane = threadIdx.x % kStatsLanes;
  for (int64_t first = int64_t{blockIdx.x} * kGroups; first < num_blocks;
       first += int64_t{gridDim.x} * kGroups) {
    const int64_t block = first + threadIdx.x / kStatsLanes;
    const int64_t begin = block * kStatsBlockElements;
    const int64_t end = begin + kStatsBlockElements < count ? begin + kStatsBlockElements : count;
    double sum = 0;
    for (int64_t i = begin + lane; i < end; i += kStatsLanes) {
      const double value = values[i];
      sum = sum + value * value;
    }
    lanes[threadIdx.x] = sum;
    __syncthreads();
    if (lane == 0 && block < num_blocks) {
      double total = 0;
      for (int k = 0; k < kStatsLanes; ++k) total = total + lanes[threadIdx.x + k];
      block_sums[block] = total;
    }
    __syncthreads();
  }
}

// One warp: all load, the first thread adds in order. `square`: of values, not of sums of squares.
__global__ void AddInOrder(const double* values, int64_t count, bool square, Stats* stats) {
  __shared__ double piece[32];
  double total = 0;
  bool finite = true;
  for (int64_t begin = 0; begin < count; begin += 32) {
    if (begin + threadIdx.x < count) piece[threadIdx.x] = values[begin + threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0) {
      for (int k = 0; k < 32 && begin + k < count; ++k) {
        finite = finite && isfinite(piece[k]);
        total = total + (square ? piece[k] * piece[k] : piece[k]);
      }
    }
    __syncwarp();
  }
  if (threadIdx.x != 0) return;
  stats->sum_of_squares = stats->sum_of_squares + total;
  // Squares of floats are finite in double, and so is any sum of them: see host/kernels_reduce.cc.
  stats->non_finite = stats->non_finite || !finite;
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
  Checksum<<<Blocks(count), kThreads, 0, Of(stream)>>>(static_cast<const Bits*>(values), count,
                                                       sum);
  return Launched();
}

}  // namespace

int LaunchReduce(void* stream, const Inputs& inputs, int input_dtype, int64_t count, double scale,
                 bool accumulate, int output_dtype, void* output) {
  return ByType(input_dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (output_dtype == 3) {
      Reduce<T, double><<<Blocks(count), kThreads, 0, Of(stream)>>>(
          inputs, count, scale, accumulate, static_cast<double*>(output));
    } else {
      Reduce<T, float><<<Blocks(count), kThreads, 0, Of(stream)>>>(
          inputs, count, static_cast<float>(scale), accumulate, static_cast<float*>(output));
    }
    return Launched();
  });
}

int LaunchCombine(void* stream, const Inputs& inputs, int dtype, int op, int64_t count,
                  void* output) {
  if (dtype == 3) {
    Combine<<<Blocks(count), kThreads, 0, Of(stream)>>>(inputs, op, count,
                                                        static_cast<double*>(output));
  } else {
    Combine<<<Blocks(count), kThreads, 0, Of(stream)>>>(inputs, op, count,
                                                        static_cast<float*>(output));
  }
  return Launched();
}

int LaunchMeasure(void* stream, int dtype, const void* values, int64_t count, double* block_sums,
                  Stats* stats) {
  if (dtype == 3) {
    AddInOrder<<<1, 32, 0, Of(stream)>>>(static_cast<const double*>(values), count, true, stats);
    return Launched();
  }
  const int64_t num_blocks = (count + kStatsBlockElements - 1) / kStatsBlockElements;
  MeasureBlocks<<<Blocks(num_blocks * kStatsLanes), kThreads, 0, Of(stream)>>>(
      static_cast<const float*>(values), count, num_blocks, block_sums);
  const int launched = Launched();
  if (launched != 0) return launched;
  AddInOrder<<<1, 32, 0, Of(stream)>>>(block_sums, num_blocks, false, stats);
  return Launched();
}

int LaunchChecksum(void* stream, const void* values, int element_bytes, int64_t count,
                   uint64_t* sum) {
  if (element_bytes == 2) return ChecksumOf<uint16_t>(stream, values, count, sum);
  if (element_bytes == 4) return ChecksumOf<uint32_t>(stream, values, count, sum);
  if (element_bytes == 8) return ChecksumOf<uint64_t>(stream, values, count, sum);
  return cudaErrorInvalidValue;
}

}  // namespace gpu
}  // namespace tessera
