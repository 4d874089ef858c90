// In which dtypes a model computes, and its gradients travel. Shards and optimizer are fp32, or
// fp64 where the module's parameters are; "fp32" below means that.
//
//   AttachOptions attach;
//   attach.precision.param_dtype = DType::kBf16;
//   ShardedModel::Attach(model, options, policy, attach);
//
// Where a cast happens, for floating-point tensors only:
//
//   forward's arguments ──► compute dtype      at the root, or at each unit that says so
//   buffers             ──► buffer dtype       in place, when attaching
//   the result          ──► unchanged, but for modules kept in full precision: back to what came in
//
// Gradients of arguments come back in the arguments' dtype. Plain values.
// Source: torch.distributed.fsdp.MixedPrecision.
#ifndef TESSERA_TORCH_MIXED_PRECISION_H_
#define TESSERA_TORCH_MIXED_PRECISION_H_

#include <torch/nn/modules/batchnorm.h>

#include <functional>
#include <optional>

#include "layout/dtype.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/wrap_policy.h"

namespace tessera {

// What may differ from unit to unit. Dtypes are kFp32, kBf16 or kFp16.
struct UnitPrecision {
  std::optional<DType> param_dtype;   // None: fp32, or the job's compute_dtype.
  std::optional<DType> reduce_dtype;  // None: param_dtype, and without one the job's.
  std::optional<DType> buffer_dtype;  // None: as they are.
  bool cast_forward_inputs = false;   // To param_dtype. Of the root cast_root_forward_inputs says.
};

struct MixedPrecision : UnitPrecision {
  bool cast_root_forward_inputs = true;
  // The optimizer gets gradients rounded to the reduce dtype.
  bool keep_low_precision_grads = false;
  // After model->eval() parameters are fp32, buffers as they were, and nothing is cast; gradients
  // of such a forward travel in fp32. All ranks evaluate together. Checked at each forward.
  bool full_precision_in_eval = false;
  // Modules that compute in fp32 whatever the rest does. Each is, or is all that is in, a
  // Sharded<>, which is a unit whatever the policy says (libtorch's own norms cannot be derived
  // from, so they are put in one). Its buffers stay as they are, its arguments are cast to fp32,
  // its result back.
  WrapPredicate full_precision =
      IsAnyOf<torch::nn::BatchNorm1dImpl, torch::nn::BatchNorm2dImpl, torch::nn::BatchNorm3dImpl>;
  // Of each other unit, the root too: its precision, given the model's. None: the model's. It
  // chooses alike on every rank; the candidate's numel is that of the unit.
  std::function<UnitPrecision(const WrapCandidate& unit, const UnitPrecision& of_model)> per_unit;
};

}  // namespace tessera

#endif  // TESSERA_TORCH_MIXED_PRECISION_H_
