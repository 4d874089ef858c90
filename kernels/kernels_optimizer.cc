// AdamStep, SgdStep.
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kernels_optimizer.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/kernels-inl.h"

// foreach_target includes this file once for each target. The types must be defined once.
#ifndef TESSERA_KERNELS_OPTIMIZER_TYPES_
#define TESSERA_KERNELS_OPTIMIZER_TYPES_
namespace tessera {
namespace host {
namespace {

// What a step needs of its parameters, rounded to fp32 once.
struct AdamFactors {
  float gradient_scale;
  float l2_decay;  // Added to the gradient, times p.
  float decay;     // Multiplies p.
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_sqrt_correction2;
  float epsilon;
  float step_size;
};

struct AdamPointers {
  const float* gradient;
  const float* p_in;
  const float* m_in;
  const float* v_in;
  float* p_out;
  float* m_out;
  float* v_out;
  float* publish_fp32;
  HalfOutput publish_half;
};

struct SgdFactors {
  float gradient_scale;
  float weight_decay;
  float momentum;
  float learning_rate;
  bool read_momentum;
  bool write_momentum;
};

struct SgdPointers {
  const float* gradient;
  const float* p_in;
  const float* momentum_in;
  float* p_out;
  float* momentum_out;
  float* publish_fp32;
  HalfOutput publish_half;
};

}  // namespace
}  // namespace host
}  // namespace tessera
#endif  // TESSERA_KERNELS_OPTIMIZER_TYPES_

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace host {
namespace HWY_NAMESPACE {

template <class D>
HWY_INLINE void Publish(D d, hn::Vec<D> p, size_t i, float* fp32, const HalfOutput& half) {
  if (fp32 != nullptr) hn::StoreU(p, d, fp32 + i);
  if (half.to == nullptr) return;
  if (half.dtype == DType::kFp16) {
    StoreHalf(d, p, reinterpret_cast<Fp16*>(half.to) + i);
  } else {
    StoreHalf(d, p, half.to + i);
  }
}

template <class D>
HWY_INLINE void AdamVector(D d, const AdamFactors& f, const AdamPointers& a, size_t i) {
  auto p = hn::LoadU(d, a.p_in + i);
  // Multiplications and additions stay apart, and the build forbids contraction: a fused one would
  // round once, and results would differ from target to target.
  auto g = hn::Mul(hn::LoadU(d, a.gradient + i), hn::Set(d, f.gradient_scale));
  if (f.l2_decay != 0) g = hn::Add(g, hn::Mul(p, hn::Set(d, f.l2_decay)));
  if (f.decay != 1) p = hn::Mul(p, hn::Set(d, f.decay));
  const auto m = hn::Add(hn::Mul(hn::LoadU(d, a.m_in + i), hn::Set(d, f.beta1)),
                         hn::Mul(g, hn::Set(d, f.one_minus_beta1)));
  const auto v = hn::Add(hn::Mul(hn::LoadU(d, a.v_in + i), hn::Set(d, f.beta2)),
                         hn::Mul(hn::Mul(g, hn::Set(d, f.one_minus_beta2)), g));
  const auto denominator =
      hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, f.inverse_sqrt_correction2)), hn::Set(d, f.epsilon));
  p = hn::Sub(p, hn::Mul(hn::Set(d, f.step_size), hn::Div(m, denominator)));
  hn::StoreU(m, d, a.m_out + i);
  hn::StoreU(v, d, a.v_out + i);
  hn::StoreU(p, d, a.p_out + i);
  Publish(d, p, i, a.publish_fp32, a.publish_half);
}

HWY_INLINE void AdamPrefetch(const AdamPointers& a, size_t i) {
  PrefetchAhead(a.gradient + i);
  PrefetchAhead(a.p_in + i);
  PrefetchAhead(a.m_in + i);
  PrefetchAhead(a.v_in + i);
}

void Adam(const AdamFactors& factors, const AdamPointers& pointers, size_t count) {
  // Copies: through references, each store could change a factor, as far as the compiler knows.
  const AdamFactors f = factors;
  const AdamPointers a = pointers;
  const FullTag d;
  const OneTag one;
  const size_t n = hn::Lanes(d);
  size_t i = 0;
  for (; i + 2 * n <= count; i += 2 * n) {
    AdamPrefetch(a, i);
    AdamPrefetch(a, i + n);
    AdamVector(d, f, a, i);
    AdamVector(d, f, a, i + n);
  }
  for (; i + n <= count; i += n) AdamVector(d, f, a, i);
  // On one lane of the same code: an element's bits must not depend on where its slice ends.
  for (; i < count; ++i) AdamVector(one, f, a, i);
}

template <class D>
HWY_INLINE void SgdVector(D d, const SgdFactors& f, const SgdPointers& a, size_t i) {
  auto p = hn::LoadU(d, a.p_in + i);
  auto g = hn::Mul(hn::LoadU(d, a.gradient + i), hn::Set(d, f.gradient_scale));
  if (f.weight_decay != 0) g = hn::Add(g, hn::Mul(p, hn::Set(d, f.weight_decay)));
  if (f.read_momentum) {
    g = hn::Add(hn::Mul(hn::LoadU(d, a.momentum_in + i), hn::Set(d, f.momentum)), g);
  }
  if (f.write_momentum) hn::StoreU(g, d, a.momentum_out + i);
  p = hn::Sub(p, hn::Mul(g, hn::Set(d, f.learning_rate)));
  hn::StoreU(p, d, a.p_out + i);
  Publish(d, p, i, a.publish_fp32, a.publish_half);
}

void Sgd(const SgdFactors& factors, const SgdPointers& pointers, size_t count) {
  const SgdFactors f = factors;
  const SgdPointers a = pointers;
  const FullTag d;
  const OneTag one;
  const size_t n = hn::Lanes(d);
  size_t i = 0;
  for (; i + n <= count; i += n) SgdVector(d, f, a, i);
  // On one lane of the same code, as in Adam.
  for (; i < count; ++i) SgdVector(one, f, a, i);
}

}  // namespace HWY_NAMESPACE
}  // namespace host
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace host {

HWY_EXPORT(Adam);
HWY_EXPORT(Sgd);

void AdamStep(const AdamParams& params, int64_t count, const float* gradient, const float* p_in,
              const float* m_in, const float* v_in, float* p_out, float* m_out, float* v_out,
              float* publish_fp32, HalfOutput publish_half) {
  TESSERA_CHECK(count >= 0);
  const bool decoupled = params.decoupled_weight_decay;
  AdamFactors f;
  f.gradient_scale = static_cast<float>(params.gradient_scale);
  f.l2_decay = decoupled ? 0.0f : static_cast<float>(params.weight_decay);
  f.decay = decoupled ? static_cast<float>(1.0 - params.learning_rate * params.weight_decay) : 1.0f;
  f.beta1 = static_cast<float>(params.beta1);
  // The differences are of doubles: in fp32 1 - 0.999 would keep few of its digits.
  f.one_minus_beta1 = static_cast<float>(1.0 - params.beta1);
  f.beta2 = static_cast<float>(params.beta2);
  f.one_minus_beta2 = static_cast<float>(1.0 - params.beta2);
  f.inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(params.bias_correction2));
  f.epsilon = static_cast<float>(params.epsilon);
  f.step_size = static_cast<float>(params.learning_rate / params.bias_correction1);
  const AdamPointers pointers = {gradient, p_in,  m_in,         v_in,        p_out,
                                 m_out,    v_out, publish_fp32, publish_half};
  HWY_DYNAMIC_DISPATCH(Adam)(f, pointers, static_cast<size_t>(count));
}

void SgdStep(const SgdParams& params, int64_t count, const float* gradient, const float* p_in,
             const float* momentum_in, float* p_out, float* momentum_out, float* publish_fp32,
             HalfOutput publish_half) {
  TESSERA_CHECK(count >= 0);
  SgdFactors f;
  f.gradient_scale = static_cast<float>(params.gradient_scale);
  f.weight_decay = static_cast<float>(params.weight_decay);
  f.momentum = static_cast<float>(params.momentum);
  f.learning_rate = static_cast<float>(params.learning_rate);
  f.write_momentum = params.momentum != 0;
  // As in PyTorch the first step's momentum is its gradient, whatever the array holds.
  f.read_momentum = f.write_momentum && !params.first_step;
  const SgdPointers pointers = {gradient,     p_in,         momentum_in, p_out,
                                momentum_out, publish_fp32, publish_half};
  HWY_DYNAMIC_DISPATCH(Sgd)(f, pointers, static_cast<size_t>(count));
}

}  // namespace host
}  // namespace tessera
#endif  // HWY_ONCE
