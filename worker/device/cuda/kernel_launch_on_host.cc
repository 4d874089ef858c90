// The launches as loops of the host over kernel_math.h, for tests: the code above and around them
// then runs everywhere, and only the grids need a device. Each runs at once, once
// what the stream did before is done, where it is told how to wait for that: see
// kernel_launch_on_host.h.
#include "worker/device/cuda/kernel_launch_on_host.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <type_traits>
#include <vector>

#include "worker/device/cuda/kernel_launch.h"

namespace tessera {
namespace gpu {
namespace {

constexpr int kInvalidValue = 1;  // CUDA_ERROR_INVALID_VALUE.

std::atomic<void (*)(void*)> await_stream = nullptr;

void AwaitEarlierWork(void* stream) {
  if (const auto await = await_stream.load()) await(stream);
}

template <typename Body>
int ByType(int dtype, Body body) {
  switch (dtype) {
    case 0:
      return body(static_cast<float*>(nullptr));
    case 1:
      return body(static_cast<Bf16*>(nullptr));
    case 2:
      return body(static_cast<Fp16*>(nullptr));
    case 3:
      return body(static_cast<double*>(nullptr));
  }
  return kInvalidValue;
}

// As ByType, of the FP8 formats.
template <typename Body>
int ByFormat(int format, Body body) {
  if (format == 0) return body(static_cast<Fp8E4M3*>(nullptr));
  if (format == 1) return body(static_cast<Fp8E5M2*>(nullptr));
  return kInvalidValue;
}

// As ByType, of FP8 too.
template <typename Body>
int ByElement(int type, Body body) {
  return type >= kFp8E4M3 ? ByFormat(type - kFp8E4M3, body) : ByType(type, body);
}

template <typename From, typename To>
int CastAll(const From* from, To* to, int64_t count, double scale) {
  for (int64_t i = 0; i < count; ++i) CastElement(from[i], scale, &to[i]);
  return 0;
}

template <typename T>
T Element(const void* values, int64_t i) {
  return static_cast<const T*>(values)[i];
}

template <typename Real>
void Publish(const Published& published, int64_t i, Real p) {
  if (published.full != nullptr) static_cast<Real*>(published.full)[i] = p;
  if (published.half == nullptr) return;
  if (published.half_dtype == 1) Narrow(p, static_cast<Bf16*>(published.half) + i);
  if (published.half_dtype == 2) Narrow(p, static_cast<Fp16*>(published.half) + i);
}

template <typename T, typename Sum>
void Reduce(const Inputs& inputs, int64_t count, Sum scale, bool accumulate, void* output) {
  for (int64_t i = 0; i < count; ++i) {
    Sum sum = static_cast<Sum>(Widen(Element<T>(inputs.at[0], i)));
    for (int r = 1; r < inputs.count; ++r) {
      sum = sum + static_cast<Sum>(Widen(Element<T>(inputs.at[r], i)));
    }
    sum = sum * scale;
    Sum& to = static_cast<Sum*>(output)[i];
    to = accumulate ? to + sum : sum;
  }
}

template <typename T>
void Combine(const Inputs& inputs, int op, double scale, int64_t count, T* output) {
  for (int64_t i = 0; i < count; ++i) {
    T value = Element<T>(inputs.at[0], i);
    WideOf<T> sum = Widen(value);
    for (int r = 1; r < inputs.count; ++r) {
      const T next = Element<T>(inputs.at[r], i);
      value = Select(op == 1, value, next);
      sum = sum + Widen(next);
    }
    if (op == 0) Narrow(sum * static_cast<WideOf<T>>(scale), &value);
    output[i] = value;
  }
}

// As the kernels do it: all blocks, then all groups, then these in order.
template <Measured what, typename Real>
void Measure(const Real* values, int64_t count, double p, double* room, double* sum,
             bool* non_finite) {
  const int64_t num_blocks = MeasureBlocksOf(count);
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t begin = block * kMeasureBlockElements;
    room[block] =
        SumOfBlock<what>(values + begin, std::min(count - begin, kMeasureBlockElements), p);
  }
  double* const groups = room + num_blocks;
  for (int64_t group = 0; group < MeasureGroupsOf(num_blocks); ++group) {
    const int64_t begin = group * kMeasureGroupBlocks;
    groups[group] = 0;
    for (int64_t k = begin; k < std::min<int64_t>(num_blocks, begin + kMeasureGroupBlocks); ++k) {
      groups[group] = AddTerm<what>(groups[group], room[k]);
    }
  }
  double total = 0;
  for (int64_t k = 0; k < MeasureGroupsOf(num_blocks); ++k) total = AddTerm<what>(total, groups[k]);
  *sum = AddTerm<what>(*sum, total);
  for (int64_t i = 0; i < count && non_finite != nullptr; ++i) {
    if (!std::isfinite(values[i])) *non_finite = true;
  }
}

template <typename Bits>
uint64_t ChecksumOf(const void* values, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += ChecksumElement(i, Element<Bits>(values, i));
  return sum;
}

}  // namespace

void AwaitStreamsBeforeLaunches(void (*await)(void* stream)) { await_stream = await; }

int LoadKernels() { return 0; }

int LaunchCast(void* stream, int from_dtype, const void* from, int to_dtype, void* to,
               int64_t count, double scale) {
  AwaitEarlierWork(stream);
  return ByType(from_dtype, [&](auto* from_type) {
    return ByType(to_dtype, [&](auto* to_type) {
      return CastAll(static_cast<decltype(from_type)>(const_cast<void*>(from)),
                     static_cast<decltype(to_type)>(to), count, scale);
    });
  });
}

int LaunchCastToFp8(void*, int from_dtype, const void* from, int format, void* to, int64_t count,
                    double scale) {
  return ByType(from_dtype, [&](auto* from_type) {
    return ByFormat(format, [&](auto* to_type) {
      return CastAll(static_cast<decltype(from_type)>(const_cast<void*>(from)),
                     static_cast<decltype(to_type)>(to), count, scale);
    });
  });
}

int LaunchCastFromFp8(void*, int format, const void* from, int to_dtype, void* to, int64_t count,
                      double scale) {
  return ByFormat(format, [&](auto* from_type) {
    return ByType(to_dtype, [&](auto* to_type) {
      return CastAll(static_cast<decltype(from_type)>(const_cast<void*>(from)),
                     static_cast<decltype(to_type)>(to), count, scale);
    });
  });
}

int LaunchScale(void* stream, int dtype, void* values, int64_t count, double factor) {
  AwaitEarlierWork(stream);
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == 3) {
      static_cast<double*>(values)[i] *= factor;
    } else {
      static_cast<float*>(values)[i] *= static_cast<float>(factor);
    }
  }
  return 0;
}

int LaunchRoundToHalf(void* stream, int half_dtype, int dtype, void* values, int64_t count) {
  AwaitEarlierWork(stream);
  const auto round = [&](auto* to, auto half) {
    for (int64_t i = 0; i < count; ++i) to[i] = RoundedTo<decltype(half)>(to[i]);
    return 0;
  };
  const auto round_all = [&](auto* to) {
    return half_dtype == 1 ? round(to, Bf16{}) : round(to, Fp16{});
  };
  return dtype == 3 ? round_all(static_cast<double*>(values))
                    : round_all(static_cast<float*>(values));
}

int LaunchFill(void* stream, int dtype, void* values, int64_t count, double value) {
  AwaitEarlierWork(stream);
  return ByType(dtype, [&](auto* type) {
    for (int64_t i = 0; i < count; ++i) Narrow(value, static_cast<decltype(type)>(values) + i);
    return 0;
  });
}

int LaunchReduce(void* stream, const Inputs& inputs, int input, int64_t count, double scale,
                 bool accumulate, int output_dtype, void* output, const Measuring& measuring) {
  AwaitEarlierWork(stream);
  const int reduced = ByElement(input, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (output_dtype == 3) {
      Reduce<T, double>(inputs, count, scale, accumulate, output);
    } else {
      Reduce<T, float>(inputs, count, static_cast<float>(scale), accumulate, output);
    }
    return 0;
  });
  if (reduced != 0 || measuring.sum == nullptr) return reduced;
  return LaunchMeasure(stream, output_dtype, output, count, 2, measuring.room, measuring.sum,
                       measuring.non_finite);
}

int LaunchCombine(void* stream, const Inputs& inputs, int type, int op, double scale, int64_t count,
                  void* output) {
  AwaitEarlierWork(stream);
  return ByElement(type, [&](auto* element) {
    Combine(inputs, op, scale, count, static_cast<decltype(element)>(output));
    return 0;
  });
}

int LaunchMeasure(void* stream, int dtype, const void* values, int64_t count, double p,
                  double* room, double* sum, bool* non_finite) {
  AwaitEarlierWork(stream);
  return WithMeasured(p, [&](auto measured) {
    constexpr Measured kWhat = decltype(measured)::value;
    if (dtype == 3) {
      Measure<kWhat>(static_cast<const double*>(values), count, p, room, sum, non_finite);
    } else {
      Measure<kWhat>(static_cast<const float*>(values), count, p, room, sum, non_finite);
    }
    return 0;
  });
}

template <typename Real>
int LaunchAdam(void* stream, const AdamFactors<Real>& factors, int64_t count, const Real* gradient,
               const AdamArrays<Real>& a) {
  AwaitEarlierWork(stream);
  for (int64_t i = 0; i < count; ++i) {
    Real p = a.p_in[i], m = a.m_in[i], v = a.v_in[i];
    AdamElement(factors, gradient[i], &p, &m, &v);
    a.p_out[i] = p;
    a.m_out[i] = m;
    a.v_out[i] = v;
    Publish(a.published, i, p);
  }
  return 0;
}

template <typename Real>
int LaunchSgd(void* stream, const SgdFactors<Real>& factors, int64_t count, const Real* gradient,
              const Real* p_in, const Real* momentum_in, Real* p_out, Real* momentum_out,
              const Published& published) {
  AwaitEarlierWork(stream);
  for (int64_t i = 0; i < count; ++i) {
    Real p = p_in[i];
    const Real momentum = factors.read_momentum ? momentum_in[i] : Real(0);
    const Real step = SgdElement(factors, gradient[i], momentum, &p);
    if (factors.write_momentum) momentum_out[i] = step;
    p_out[i] = p;
    Publish(published, i, p);
  }
  return 0;
}

int LaunchChecksum(void* stream, const void* values, int element_bytes, int64_t count,
                   uint64_t* sum) {
  AwaitEarlierWork(stream);
  if (element_bytes == 2) *sum += ChecksumOf<uint16_t>(values, count);
  if (element_bytes == 4) *sum += ChecksumOf<uint32_t>(values, count);
  if (element_bytes == 8) *sum += ChecksumOf<uint64_t>(values, count);
  return 0;
}

template int LaunchAdam(void*, const AdamFactors<float>&, int64_t, const float*,
                        const AdamArrays<float>&);
template int LaunchAdam(void*, const AdamFactors<double>&, int64_t, const double*,
                        const AdamArrays<double>&);
template int LaunchSgd(void*, const SgdFactors<float>&, int64_t, const float*, const float*,
                       const float*, float*, float*, const Published&);
template int LaunchSgd(void*, const SgdFactors<double>&, int64_t, const double*, const double*,
                       const double*, double*, double*, const Published&);

}  // namespace gpu
}  // namespace tessera
