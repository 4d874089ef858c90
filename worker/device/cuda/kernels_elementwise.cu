// Cast, round, scale, fill.
#include "worker/device/cuda/kernels_wide.cuh"

namespace tessera {
namespace gpu {
namespace {

// 16 bytes of what is written: of two stores to a pack each would fill half of a sector. Of FP8 at
// least the 4 bytes of an access are read.
template <typename From, typename To>
constexpr int kCastPack = kPackOf<To> < 4 / static_cast<int>(sizeof(From))
                              ? 4 / static_cast<int>(sizeof(From))
                              : kPackOf<To>;

template <typename From, typename To>
__global__ void Cast(Walk walk, const From* __restrict__ from, To* __restrict__ to, double scale) {
  ForEach<kCastPack<From, To>>(walk, [&](auto n, int64_t i) {
    const auto in = Load<n.value>(from + i);
    Pack<To, n.value> out;
#pragma unroll
    for (int k = 0; k < n.value; ++k) CastElement(in.at[k], scale, &out.at[k]);
    Store(to + i, out);
  });
}

template <typename Real>
__global__ void Scale(Walk walk, Real* __restrict__ values, Real factor) {
  ForEach<kPackOf<Real>>(walk, [&](auto n, int64_t i) {
    auto pack = Load<n.value>(values + i);
#pragma unroll
    for (int k = 0; k < n.value; ++k) pack.at[k] = pack.at[k] * factor;
    Store(values + i, pack);
  });
}

template <typename T>
__global__ void Fill(Walk walk, T* __restrict__ values, double value) {
  T element;
  Narrow(value, &element);
  ForEach<kPackOf<T>>(walk, [&](auto n, int64_t i) {
    Pack<T, n.value> pack;
#pragma unroll
    for (int k = 0; k < n.value; ++k) pack.at[k] = element;
    Store(values + i, pack);
  });
}

template <typename Half, typename Real>
__global__ void RoundToHalf(Walk walk, Real* __restrict__ values) {
  ForEach<kPackOf<Real>>(walk, [&](auto n, int64_t i) {
    auto pack = Load<n.value>(values + i);
#pragma unroll
    for (int k = 0; k < n.value; ++k) pack.at[k] = RoundedTo<Half>(pack.at[k]);
    Store(values + i, pack);
  });
}

// As ByType, of the FP8 formats.
template <typename Body>
int ByFormat(int format, Body body) {
  if (format == 0) return body(static_cast<Fp8E4M3*>(nullptr));
  if (format == 1) return body(static_cast<Fp8E5M2*>(nullptr));
  return kInvalidValue;
}

template <typename From, typename To>
int CastAll(void* stream, const From* from, To* to, int64_t count, double scale) {
  constexpr int kPack = kCastPack<From, To>;
  const Walk walk = WalkOver(count, kPack, {ArrayOf(from), ArrayOf(to)});
  return Launch<Cast<From, To>>(stream, BlocksOf(walk, kPack), walk, from, to, scale);
}

template <typename Real>
int ScaleAll(void* stream, void* array, int64_t count, double factor) {
  auto* const values = static_cast<Real*>(array);
  const Walk walk = WalkOver(count, kPackOf<Real>, {ArrayOf(values)});
  return Launch<Scale<Real>>(stream, BlocksOf(walk, kPackOf<Real>), walk, values,
                             static_cast<Real>(factor));
}

template <typename Real>
int RoundAll(void* stream, int half_dtype, void* array, int64_t count) {
  auto* const values = static_cast<Real*>(array);
  const Walk walk = WalkOver(count, kPackOf<Real>, {ArrayOf(values)});
  const int64_t blocks = BlocksOf(walk, kPackOf<Real>);
  return half_dtype == 1 ? Launch<RoundToHalf<Bf16, Real>>(stream, blocks, walk, values)
                         : Launch<RoundToHalf<Fp16, Real>>(stream, blocks, walk, values);
}

}  // namespace

int LaunchCast(void* stream, int from_dtype, const void* from, int to_dtype, void* to,
               int64_t count, double scale) {
  return ByType(from_dtype, [&](auto* from_type) {
    return ByType(to_dtype, [&](auto* to_type) {
      return CastAll(stream, static_cast<decltype(from_type)>(const_cast<void*>(from)),
                     static_cast<decltype(to_type)>(to), count, scale);
    });
  });
}

int LaunchCastToFp8(void* stream, int from_dtype, const void* from, int format, void* to,
                    int64_t count, double scale) {
  return ByType(from_dtype, [&](auto* from_type) {
    return ByFormat(format, [&](auto* to_type) {
      return CastAll(stream, static_cast<decltype(from_type)>(const_cast<void*>(from)),
                     static_cast<decltype(to_type)>(to), count, scale);
    });
  });
}

int LaunchCastFromFp8(void* stream, int format, const void* from, int to_dtype, void* to,
                      int64_t count, double scale) {
  return ByFormat(format, [&](auto* from_type) {
    return ByType(to_dtype, [&](auto* to_type) {
      return CastAll(stream, static_cast<decltype(from_type)>(const_cast<void*>(from)),
                     static_cast<decltype(to_type)>(to), count, scale);
    });
  });
}

int LaunchScale(void* stream, int dtype, void* values, int64_t count, double factor) {
  return dtype == 3 ? ScaleAll<double>(stream, values, count, factor)
                    : ScaleAll<float>(stream, values, count, factor);
}

int LaunchRoundToHalf(void* stream, int half_dtype, int dtype, void* values, int64_t count) {
  return dtype == 3 ? RoundAll<double>(stream, half_dtype, values, count)
                    : RoundAll<float>(stream, half_dtype, values, count);
}

int LaunchFill(void* stream, int dtype, void* values, int64_t count, double value) {
  return ByType(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    auto* const to = static_cast<T*>(values);
    const Walk walk = WalkOver(count, kPackOf<T>, {ArrayOf(to)});
    return Launch<Fill<T>>(stream, BlocksOf(walk, kPackOf<T>), walk, to, value);
  });
}

}  // namespace gpu
}  // namespace tessera
