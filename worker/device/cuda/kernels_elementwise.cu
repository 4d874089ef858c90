// Cast, scale, fill, and the optimizers.
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

__device__ inline void Publish(const Published& published, int64_t i, float p) {
  if (published.full != nullptr) static_cast<float*>(published.full)[i] = p;
  if (published.half == nullptr) return;
  if (published.half_dtype == 1) {
    Narrow(p, static_cast<Bf16*>(published.half) + i);
  } else {
    Narrow(p, static_cast<Fp16*>(published.half) + i);
  }
}

__global__ void Adam(AdamFactors<float> factors, int64_t count, const float* gradient,
                     const float* p_in, const float* m_in, const float* v_in, float* p_out,
                     float* m_out, float* v_out, Published published) {
  for (int64_t i = First(); i < count; i += Stride()) {
    float p = p_in[i];
    float m = m_in[i];
    float v = v_in[i];
    AdamElement(factors, gradient[i], &p, &m, &v);
    p_out[i] = p;
    m_out[i] = m;
    v_out[i] = v;
    Publish(published, i, p);
  }
}

__global__ void Sgd(SgdFactors<float> factors, int64_t count, const float* gradient,
                    const float* p_in, const float* momentum_in, float* p_out, float* momentum_out,
                    Published published) {
  for (int64_t i = First(); i < count; i += Stride()) {
    float p = p_in[i];
    const float momentum = factors.read_momentum ? momentum_in[i] : 0.0f;
    const float step = SgdElement(factors, gradient[i], momentum, &p);
    if (factors.write_momentum) momentum_out[i] = step;
    p_out[i] = p;
    Publish(published, i, p);
  }
}

}  // namespace

int LaunchCast(void* stream, int from_dtype, const void* from, int to_dtype, void* to,
               int64_t count, double scale) {
  return ByType(from_dtype, [&](auto* from_type) {
    return ByType(to_dtype, [&](auto* to_type) {
      Cast<<<Blocks(count), kThreads, 0, Of(stream)>>>(
          static_cast<decltype(from_type)>(const_cast<void*>(from)),
          static_cast<decltype(to_type)>(to), count, scale);
      return Launched();
    });
  });
}

int LaunchScale(void* stream, int dtype, void* values, int64_t count, double factor) {
  if (dtype == 3) {
    Scale<<<Blocks(count), kThreads, 0, Of(stream)>>>(static_cast<double*>(values), count, factor);
  } else {
    Scale<<<Blocks(count), kThreads, 0, Of(stream)>>>(static_cast<float*>(values), count,
                                                      static_cast<float>(factor));
  }
  return Launched();
}

int LaunchFill(void* stream, int dtype, void* values, int64_t count, double value) {
  return ByType(dtype, [&](auto* type) {
    Fill<<<Blocks(count), kThreads, 0, Of(stream)>>>(static_cast<decltype(type)>(values), count,
                                                     value);
    return Launched();
  });
}

int LaunchAdam(void* stream, const AdamFactors<float>& factors, int64_t count,
               const float* gradient, const float* p_in, const float* m_in, const float* v_in,
               float* p_out, float* m_out, float* v_out, const Published& published) {
  Adam<<<Blocks(count), kThreads, 0, Of(stream)>>>(factors, count, gradient, p_in, m_in, v_in,
                                                   p_out, m_out, v_out, published);
  return Launched();
}

int LaunchSgd(void* stream, const SgdFactors<float>& factors, int64_t count, const float* gradient,
              const float* p_in, const float* momentum_in, float* p_out, float* momentum_out,
              const Published& published) {
  Sgd<<<Blocks(count), kThreads, 0, Of(stream)>>>(factors, count, gradient, p_in, momentum_in,
                                                  p_out, momentum_out, published);
  return Launched();
}

}  // namespace gpu
}  // namespace tessera
