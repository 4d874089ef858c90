// Sums over ranks, the measure of a gradient, checksums.
#include "worker/device/cuda/kernels_sum.cuh"

namespace tessera {
namespace gpu {
namespace {

template <typename T, typename Sum>
__global__ void Reduce(Walk walk, Inputs inputs, Sum scale, bool accumulate, Sum* output) {
  ForEach<kPackOf<Sum>>(walk, [&](auto n, int64_t i) {
    auto sum = SumOf<n.value, T>(inputs, i, scale);
    if (accumulate) {
      const auto before = Load<n.value>(output + i);
#pragma unroll
      for (int k = 0; k < n.value; ++k) sum.at[k] = before.at[k] + sum.at[k];
    }
    Store(output + i, sum);
  });
}

// As Reduce, and rounded to what the inputs are.
template <typename T>
__global__ void SumInType(Walk walk, Inputs inputs, WideOf<T> scale, T* output) {
  ForEach<kPackOf<T>>(walk, [&](auto n, int64_t i) {
    const auto sum = SumOf<n.value, T>(inputs, i, scale);
    Pack<T, n.value> rounded;
#pragma unroll
    for (int k = 0; k < n.value; ++k) Narrow(sum.at[k], &rounded.at[k]);
    Store(output + i, rounded);
  });
}

template <typename T>
__global__ void SelectOf(Walk walk, Inputs inputs, bool larger, T* output) {
  ForEach<kPackOf<T>>(walk, [&](auto n, int64_t i) {
    auto value = Load<n.value>(static_cast<const T*>(inputs.at[0]) + i);
    for (int r = 1; r < inputs.count; ++r) {
      const auto next = Load<n.value>(static_cast<const T*>(inputs.at[r]) + i);
#pragma unroll
      for (int k = 0; k < n.value; ++k) value.at[k] = Select(larger, value.at[k], next.at[k]);
    }
    Store(output + i, value);
  });
}

// Some threads a block of elements, each for `kLanes` neighbours of the definition's lanes: those
// that one access brings, or one where arrays do not begin at a multiple of it. Threads of their
// own then add the lanes of a block in order. `load(n, i)` is the pack of n::value elements at i,
// and `store(i, pack)` is called with each. Of `kRows` rows all are loaded before the first is
// stored: the compiler must take what is stored for what is loaded next.
template <Measured what, int kLanes, int kRows, typename LoadPack, typename StorePack>
__device__ inline void MeasureAll(int64_t count, int64_t num_blocks, double p, double* block_sums,
                                  bool* non_finite, LoadPack load, StorePack store) {
  __shared__ double lanes[kMeasureThreads * kLanes];
  constexpr int kThreadsABlock = kMeasureLanes / kLanes;
  constexpr int kBlocksAtOnce = kMeasureThreads / kThreadsABlock;
  const int first_lane = static_cast<int>(threadIdx.x) % kThreadsABlock * kLanes;
  for (int64_t first = int64_t{blockIdx.x} * kBlocksAtOnce; first < num_blocks;
       first += int64_t{gridDim.x} * kBlocksAtOnce) {
    const int64_t block = first + threadIdx.x / kThreadsABlock;
    const int64_t begin = block * kMeasureBlockElements + first_lane;
    const int64_t left = count - block * kMeasureBlockElements;
    double sums[kLanes] = {};
    bool finite = true;
    const auto take = [&](int k, auto value) {
      finite = finite && isfinite(value);
      sums[k] = AddTerm<what>(sums[k], TermOf<what>(value, p));
    };
    if (left >= kMeasureBlockElements) {
      constexpr std::integral_constant<int, kLanes> kPack;
      for (int i = 0; i < kMeasureBlockElements; i += kRows * kMeasureLanes) {
        decltype(load(kPack, begin)) rows[kRows];
#pragma unroll
        for (int j = 0; j < kRows; ++j) rows[j] = load(kPack, begin + i + j * kMeasureLanes);
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
          store(begin + i + j * kMeasureLanes, rows[j]);
#pragma unroll
          for (int k = 0; k < kLanes; ++k) take(k, rows[j].at[k]);
        }
      }
    } else {
      for (int64_t i = first_lane; i < left; i += kMeasureLanes) {
#pragma unroll
        for (int k = 0; k < kLanes; ++k) {
          if (i + k >= left) continue;
          const int64_t at = begin - first_lane + i + k;
          const auto one = load(std::integral_constant<int, 1>(), at);
          store(at, one);
          take(k, one.at[0]);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kLanes; ++k) lanes[threadIdx.x * kLanes + k] = sums[k];
    const bool any_non_finite = __syncthreads_or(!finite);
    if (threadIdx.x == 0 && any_non_finite && non_finite != nullptr) *non_finite = true;
    if (threadIdx.x < kBlocksAtOnce && first + threadIdx.x < num_blocks) {
      double total = 0;
      for (int k = 0; k < kMeasureLanes; ++k) {
        total = AddTerm<what>(total, lanes[threadIdx.x * kMeasureLanes + k]);
      }
      block_sums[first + threadIdx.x] = total;
    }
    __syncthreads();
  }
}

template <Measured what, int kLanes, typename Real>
__global__ void MeasureBlocks(const Real* __restrict__ values, int64_t count, int64_t num_blocks,
                              double p, double* block_sums, bool* non_finite) {
  MeasureAll<what, kLanes, 8>(
      count, num_blocks, p, block_sums, non_finite,
      [&](auto n, int64_t i) { return Load<n.value>(values + i); }, [](int64_t, const auto&) {});
}

// Reduce, and the measure of what it wrote in the same pass.
template <int kLanes, typename T, typename Sum>
__global__ void ReduceBlocks(Inputs inputs, int64_t count, int64_t num_blocks, Sum scale,
                             bool accumulate, Sum* output, double* block_sums, bool* non_finite) {
  const auto load = [&](auto n, int64_t i) {
    auto sum = SumOf<n.value, T>(inputs, i, scale);
    if (accumulate) {
      const auto before = Load<n.value>(output + i);
#pragma unroll
      for (int k = 0; k < n.value; ++k) sum.at[k] = before.at[k] + sum.at[k];
    }
    return sum;
  };
  const auto store = [&](int64_t i, const auto& sum) { Store(output + i, sum); };
  MeasureAll<Measured::kSquares, kLanes, 4>(count, num_blocks, 2, block_sums, non_finite, load,
                                            store);
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

// What is left of a measure once each block of elements has its sum.
template <Measured what>
int AddBlocks(void* stream, int64_t count, double* room, double* sum) {
  const int64_t num_blocks = MeasureBlocksOf(count);
  const int64_t num_groups = MeasureGroupsOf(num_blocks);
  if (num_groups == 1) return Launch<AddUp<what>>(stream, 1, room, num_blocks, sum);
  double* const group_sums = room + num_blocks;
  const int grouped = Launch<AddGroups<what>>(stream, num_groups, room, num_blocks, group_sums);
  if (grouped != 0) return grouped;
  return Launch<AddUp<what>>(stream, 1, group_sums, num_groups, sum);
}

// Grids of those that measure, where each thread has so many lanes.
int64_t MeasureGrid(int64_t count, int lanes) {
  const int64_t threads = MeasureBlocksOf(count) * (kMeasureLanes / lanes);
  return (threads + kMeasureThreads - 1) / kMeasureThreads;
}

template <Measured what, typename Real>
int MeasureAs(void* stream, const Real* values, int64_t count, double p, double* room, double* sum,
              bool* non_finite) {
  const auto launch = [&](auto lanes) {
    return Launch<MeasureBlocks<what, lanes.value, Real>, kMeasureThreads>(
        stream, MeasureGrid(count, lanes.value), values, count, MeasureBlocksOf(count), p, room,
        non_finite);
  };
  constexpr int kPack = kPackOf<Real>;
  const std::initializer_list<Array> arrays = {ArrayOf(values)};
  const int measured = IsWideAt(arrays, kPack, 0) ? launch(std::integral_constant<int, kPack>())
                                                  : launch(std::integral_constant<int, 1>());
  return measured != 0 ? measured : AddBlocks<what>(stream, count, room, sum);
}

template <typename T, typename Sum>
int ReduceAs(void* stream, const Inputs& inputs, int64_t count, double scale, bool accumulate,
             void* to, const Measuring& measuring) {
  auto* const output = static_cast<Sum*>(to);
  const auto factor = static_cast<Sum>(scale);
  const SumArrays<1> arrays(inputs, sizeof(T), {ArrayOf(output)});
  if (measuring.sum == nullptr) {
    constexpr int kPack = kPackOf<Sum>;
    const Walk walk = WalkOver(count, kPack, arrays);
    return Launch<Reduce<T, Sum>>(stream, BlocksOf(walk, kPack), walk, inputs, factor, accumulate,
                                  output);
  }
  const auto launch = [&](auto lanes) {
    return Launch<ReduceBlocks<lanes.value, T, Sum>, kMeasureThreads>(
        stream, MeasureGrid(count, lanes.value), inputs, count, MeasureBlocksOf(count), factor,
        accumulate, output, measuring.room, measuring.non_finite);
  };
  // As many lanes as there are sums in 16 bytes.
  constexpr int kLanes = kPackOf<Sum>;
  const int reduced = IsWideAt(arrays, kLanes, 0) ? launch(std::integral_constant<int, kLanes>())
                                                  : launch(std::integral_constant<int, 1>());
  if (reduced != 0) return reduced;
  return AddBlocks<Measured::kSquares>(stream, count, measuring.room, measuring.sum);
}

template <typename T>
int CombineAs(void* stream, const Inputs& inputs, int op, double scale, int64_t count, void* to) {
  auto* const output = static_cast<T*>(to);
  constexpr int kPack = kPackOf<T>;
  const Walk walk = WalkOver(count, kPack, SumArrays<1>(inputs, sizeof(T), {ArrayOf(output)}));
  const int64_t blocks = BlocksOf(walk, kPack);
  if (op != 0) return Launch<SelectOf<T>>(stream, blocks, walk, inputs, op == 1, output);
  return Launch<SumInType<T>>(stream, blocks, walk, inputs, static_cast<WideOf<T>>(scale), output);
}

template <typename Bits>
__global__ void Checksum(Walk walk, const Bits* __restrict__ values, uint64_t* sum) {
  uint64_t own = 0;
  ForEach<kPackOf<Bits>>(walk, [&](auto n, int64_t i) {
    const auto pack = Load<n.value>(values + i);
#pragma unroll
    for (int k = 0; k < n.value; ++k) own += ChecksumElement(i + k, pack.at[k]);
  });
  for (int offset = 16; offset > 0; offset /= 2) {
    own += __shfl_down_sync(0xFFFFFFFFu, static_cast<unsigned long long>(own), offset);
  }
  if (threadIdx.x % 32 == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(own));
  }
}

template <typename Bits>
int ChecksumOf(void* stream, const void* array, int64_t count, uint64_t* sum) {
  const auto* const values = static_cast<const Bits*>(array);
  constexpr int kPack = kPackOf<Bits>;
  const Walk walk = WalkOver(count, kPack, {ArrayOf(values)});
  return Launch<Checksum<Bits>>(stream, BlocksOf(walk, kPack), walk, values, sum);
}

}  // namespace

int LaunchReduce(void* stream, const Inputs& inputs, int input, int64_t count, double scale,
                 bool accumulate, int output_dtype, void* output, const Measuring& measuring) {
  return ByElement(input, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (output_dtype != 3) {
      return ReduceAs<T, float>(stream, inputs, count, scale, accumulate, output, measuring);
    }
    if constexpr (sizeof(T) > 1) {
      return ReduceAs<T, double>(stream, inputs, count, scale, accumulate, output, measuring);
    } else {
      return kInvalidValue;
    }
  });
}

int LaunchCombine(void* stream, const Inputs& inputs, int type, int op, double scale, int64_t count,
                  void* output) {
  return ByElement(type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return CombineAs<T>(stream, inputs, op, scale, count, output);
  });
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
