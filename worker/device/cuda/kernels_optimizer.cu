// The optimizers, from a gradient or from the slices whose sum it is.
#include "worker/device/cuda/kernels_sum.cuh"

namespace tessera {
namespace gpu {
namespace {

template <int kCount, typename Real>
__device__ inline void Publish(const Published& published, int64_t i, const Pack<Real, kCount>& p) {
  if (published.full != nullptr) Store(static_cast<Real*>(published.full) + i, p);
  if (published.half == nullptr) return;
  const auto store_as = [&](auto* to) {
    Pack<std::remove_pointer_t<decltype(to)>, kCount> halves;
#pragma unroll
    for (int k = 0; k < kCount; ++k) Narrow(p.at[k], &halves.at[k]);
    Store(to + i, halves);
  };
  if (published.half_dtype == 1) {
    store_as(static_cast<Bf16*>(published.half));
  } else {
    store_as(static_cast<Fp16*>(published.half));
  }
}

// All of a pack is loaded before any of it is stored: outputs may be the inputs, and so no pointer
// of these can be __restrict__ but the gradient's.
template <int kCount, typename Real>
__device__ inline void AdamPack(const AdamFactors<Real>& factors, const AdamArrays<Real>& state,
                                int64_t i, const Pack<Real, kCount>& gradient) {
  auto p = Load<kCount>(state.p_in + i);
  auto m = Load<kCount>(state.m_in + i);
  auto v = Load<kCount>(state.v_in + i);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    AdamElement(factors, gradient.at[k], &p.at[k], &m.at[k], &v.at[k]);
  }
  Store(state.p_out + i, p);
  Store(state.m_out + i, m);
  Store(state.v_out + i, v);
  Publish(state.published, i, p);
}

template <typename Real>
__global__ void Adam(Walk walk, AdamFactors<Real> factors, const Real* __restrict__ gradient,
                     AdamArrays<Real> state) {
  ForEach<kPackOf<Real>>(
      walk, [&](auto n, int64_t i) { AdamPack(factors, state, i, Load<n.value>(gradient + i)); });
}

template <typename Real>
__global__ void Sgd(Walk walk, SgdFactors<Real> factors, const Real* __restrict__ gradient,
                    const Real* p_in, const Real* momentum_in, Real* p_out, Real* momentum_out,
                    Published published) {
  ForEach<kPackOf<Real>>(walk, [&](auto n, int64_t i) {
    const auto g = Load<n.value>(gradient + i);
    auto p = Load<n.value>(p_in + i);
    Pack<Real, n.value> momentum = {};
    if (factors.read_momentum) momentum = Load<n.value>(momentum_in + i);
#pragma unroll
    for (int k = 0; k < n.value; ++k) {
      momentum.at[k] = SgdElement(factors, g.at[k], momentum.at[k], &p.at[k]);
    }
    if (factors.write_momentum) Store(momentum_out + i, momentum);
    Store(p_out + i, p);
    Publish(published, i, p);
  });
}

Array HalvesOf(const Published& published) {
  return {published.half, static_cast<int>(sizeof(Bf16))};
}
template <typename Real>
Array FullOf(const Published& published) {
  return ArrayOf(static_cast<const Real*>(published.full));
}

}  // namespace

template <typename Real>
int LaunchAdam(void* stream, const AdamFactors<Real>& factors, int64_t count, const Real* gradient,
               const AdamArrays<Real>& a) {
  constexpr int kPack = kPackOf<Real>;
  const Walk walk = WalkOver(
      count, kPack,
      {ArrayOf(gradient), ArrayOf(a.p_in), ArrayOf(a.m_in), ArrayOf(a.v_in), ArrayOf(a.p_out),
       ArrayOf(a.m_out), ArrayOf(a.v_out), FullOf<Real>(a.published), HalvesOf(a.published)});
  return Launch<Adam<Real>>(stream, BlocksOf(walk, kPack), walk, factors, gradient, a);
}

template <typename Real>
int LaunchSgd(void* stream, const SgdFactors<Real>& factors, int64_t count, const Real* gradient,
              const Real* p_in, const Real* momentum_in, Real* p_out, Real* momentum_out,
              const Published& published) {
  constexpr int kPack = kPackOf<Real>;
  const auto used = [](bool is, const Real* array) { return ArrayOf(is ? array : nullptr); };
  const Walk walk = WalkOver(
      count, kPack,
      {ArrayOf(gradient), ArrayOf(p_in), used(factors.read_momentum, momentum_in), ArrayOf(p_out),
       used(factors.write_momentum, momentum_out), FullOf<Real>(published), HalvesOf(published)});
  return Launch<Sgd<Real>>(stream, BlocksOf(walk, kPack), walk, factors, gradient, p_in,
                           momentum_in, p_out, momentum_out, published);
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
