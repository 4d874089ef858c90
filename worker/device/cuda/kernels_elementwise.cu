// Cast, round, scale, fill, and the optimizers.
#include "worker/device/cuda/kernels_common.cuh"

namespace tessera {
namespace gpu {
namespace {

template <typename From, typename To>
__global__ void Cast(const From* from, To* to, int64_t count, double scale) {
  for (int64_t i = First(); i < count; i += Stride()) CastElement(from[i], scale, &to[i]);
}

template <typename Real>
__global__ void Scale(Real* values, int64_t count, Real factor) {
  for (int64_t i = First(); i < count; i += Stride()) values[i] = values[i] * factor;
}

template <typename T>
__global__ void Fill(T* values, int64_t count, double value) {
  T element;
  Narrow(value, &element);
  for (int64_t i = First(); i < count; i += Stride()) values[i] = element;
}

template <typename Half, typename Real>
__global__ void RoundToHalf(Real* values, int64_t count) {
  for (int64_t i = First(); i < count; i += Stride()) values[i] = RoundedTo<Half>(values[i]);
}

template <typename Real>
__device__ inline void Publish(const Published& published, int64_t i, Real p) {
  if (published.full != nullptr) static_cast<Real*>(published.full)[i] = p;
  if (published.half == nullptr) return;
  if (published.half_dtype == 1) {
    Narrow(p, static_cast<Bf16*>(published.half) + i);
  } else {
    Narrow(p, static_cast<Fp16*>(published.half) + i);
  }
}

template <typename Real>
__global__ void Adam(AdamFactors<Real> factors, int64_t count, const Real* gradient,
                     const Real* p_in, const Real* m_in, const Real* v_in, Real* p_out, Real* m_out,
                     Real* v_out, Published published) {
  for (int64_t i = First(); i < count; i += Stride()) {
    Real p = p_in[i];
    Real m = m_in[i];
    Real v = v_in[i];
    AdamElement(factors, gradient[i], &p, &m, &v);
    p_out[i] = p;
    m_out[i] = m;
    v_out[i] = v;
    Publish(published, i, p);
  }
}

template <typename Real>
__global__ void Sgd(SgdFactors<Real> factors, int64_t count, const Real* gradient, const Real* p_in,
                    const Real* momentum_in, Real* p_out, Real* momentum_out, Published published) {
  for (int64_t i = First(); i < count; i += Stride()) {
    Real p = p_in[i];
    const Real momentum = factors.read_momentum ? momentum_in[i] : Real(0);
    const Real step = SgdElement(factors, gradient[i], momentum, &p);
    if (factors.write_momentum) momentum_out[i] = step;
    p_out[i] = p;
    Publish(published, i, p);
  }
}

// As ByType, of the formats of eight bits.
template <typename Body>
int ByFormat(int format, Body body) {
  if (format == 0) return body(static_cast<Fp8E4M3*>(nullptr));
  if (format == 1) return body(static_cast<Fp8E5M2*>(nullptr));
  return kInvalidValue;
}

template <typename From, typename To>
int CastAll(void* stream, const From* from, To* to, int64_t count, double scale) {
  return Launch(stream, Blocks(count), Cast<From, To>, from, to, count, scale);
}

template <typename Real>
int RoundAll(void* stream, int half_dtype, void* values, int64_t count) {
  auto* const to = static_cast<Real*>(values);
  return half_dtype == 1 ? Launch(stream, Blocks(count), RoundToHalf<Bf16, Real>, to, count)
                         : Launch(stream, Blocks(count), RoundToHalf<Fp16, Real>, to, count);
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
  if (dtype == 3) {
    return Launch(stream, Blocks(count), Scale<double>, static_cast<double*>(values), count,
                  factor);
  }
  return Launch(stream, Blocks(count), Scale<float>, static_cast<float*>(values), count,
                static_cast<float>(factor));
}

int LaunchRoundToHalf(void* stream, int half_dtype, int dtype, void* values, int64_t count) {
  return dtype == 3 ? RoundAll<double>(stream, half_dtype, values, count)
                    : RoundAll<float>(stream, half_dtype, values, count);
}

int LaunchFill(void* stream, int dtype, void* values, int64_t count, double value) {
  return ByType(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    return Launch(stream, Blocks(count), Fill<T>, static_cast<T*>(values), count, value);
  });
}

template <typename Real>
int LaunchAdam(void* stream, const AdamFactors<Real>& factors, int64_t count, const Real* gradient,
               const Real* p_in, const Real* m_in, const Real* v_in, Real* p_out, Real* m_out,
               Real* v_out, const Published& published) {
  return Launch(stream, Blocks(count), Adam<Real>, factors, count, gradient, p_in, m_in, v_in,
                p_out, m_out, v_out, published);
}

template <typename Real>
int LaunchSgd(void* stream, const SgdFactors<Real>& factors, int64_t count, const Real* gradient,
              const Real* p_in, const Real* momentum_in, Real* p_out, Real* momentum_out,
              const Published& published) {
  return Launch(stream, Blocks(count), Sgd<Real>, factors, count, gradient, p_in, momentum_in,
                p_out, momentum_out, published);
}

template int LaunchAdam(void*, const AdamFactors<float>&, int64_t, const float*, const float*,
                        const float*, const float*, float*, float*, float*, const Published&);
template int LaunchAdam(void*, const AdamFactors<double>&, int64_t, const double*, const double*,
                        const double*, const double*, double*, double*, double*, const Published&);
template int LaunchSgd(void*, const SgdFactors<float>&, int64_t, const float*, const float*,
                       const float*, float*, float*, const Published&);
template int LaunchSgd(void*, const SgdFactors<double>&, int64_t, const double*, const double*,
                       const double*, double*, double*, const Published&);

}  // namespace gpu
}  // namespace tessera
