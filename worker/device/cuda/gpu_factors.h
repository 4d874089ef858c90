// What the optimizers' kernels need of a step's parameters, rounded once as the host's kernels
// round it. Pure; thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_GPU_FACTORS_H_
#define TESSERA_WORKER_DEVICE_CUDA_GPU_FACTORS_H_

#include <cmath>

#include "kernels/kernels.h"
#include "worker/device/cuda/kernel_math.h"

namespace tessera {
namespace gpu {

template <typename Real>
AdamFactors<Real> FactorsOf(const host::AdamParams& params) {
  const bool decoupled = params.decoupled_weight_decay;
  const double decay = decoupled ? 1.0 - params.learning_rate * params.weight_decay : 1.0;
  AdamFactors<Real> f;
  f.gradient_scale = static_cast<Real>(params.gradient_scale);
  f.l2_decay = decoupled ? Real(0) : static_cast<Real>(params.weight_decay);
  f.decay = static_cast<Real>(decay);
  f.beta1 = static_cast<Real>(params.beta1);
  f.one_minus_beta1 = static_cast<Real>(1.0 - params.beta1);
  f.beta2 = static_cast<Real>(params.beta2);
  f.one_minus_beta2 = static_cast<Real>(1.0 - params.beta2);
  f.inverse_sqrt_correction2 = static_cast<Real>(1.0 / std::sqrt(params.bias_correction2));
  f.epsilon = static_cast<Real>(params.epsilon);
  f.step_size = static_cast<Real>(params.learning_rate / params.bias_correction1);
  return f;
}

template <typename Real>
SgdFactors<Real> FactorsOf(const host::SgdParams& params) {
  SgdFactors<Real> f;
  f.gradient_scale = static_cast<Real>(params.gradient_scale);
  f.weight_decay = static_cast<Real>(params.weight_decay);
  f.momentum = static_cast<Real>(params.momentum);
  f.learning_rate = static_cast<Real>(params.learning_rate);
  f.write_momentum = params.momentum != 0;
  f.read_momentum = f.write_momentum && !params.first_step;
  return f;
}

}  // namespace gpu
}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_GPU_FACTORS_H_
