#include "client/torch/precision_rules.h"

#include "absl/strings/str_cat.h"
#include "tessera/torch/sharded.h"

namespace tessera {
namespace {

// Whether something is chosen, and nothing else has parameters.
bool HoldsOnly(const torch::nn::Module& module, const std::string& name,
               const WrapPredicate& chosen) {
  if (module.parameters().empty()) return true;
  // Chosen with all that is below it.
  if (chosen({name, module, 0})) return true;
  if (!module.parameters(/*recurse=*/false).empty()) return false;
  for (const auto& child : module.named_children()) {
    if (!HoldsOnly(*child.value(), absl::StrCat(name, ".", child.key()), chosen)) return false;
  }
  return true;
}

}  // namespace

torch::ScalarType ScalarTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return torch::kFloat32;
    case DType::kBf16:
      return torch::kBFloat16;
    case DType::kFp16:
      return torch::kFloat16;
    case DType::kFp64:
      return torch::kFloat64;
    case DType::kInt64:
      return torch::kInt64;
    case DType::kInt32:
      return torch::kInt32;
  }
  return torch::kFloat32;
}

bool KeepsFullPrecision(const MixedPrecision& precision, const torch::nn::Module& module,
                        const std::string& name) {
  // Where nothing is computed in lower precision, nothing has to be kept out of it.
  if (precision.param_dtype.value_or(DType::kFp32) == DType::kFp32) return false;
  if (precision.full_precision == nullptr || module.parameters().empty()) return false;
  if (dynamic_cast<const ShardedBase*>(&module) == nullptr) {
    return precision.full_precision({name, module, 0});
  }
  return HoldsOnly(module, name, precision.full_precision);
}

MixedPrecision MergePrecision(MixedPrecision precision, JobConfig* config) {
  if (precision.param_dtype.has_value()) {
    config->compute_dtype = *precision.param_dtype;
    config->reduce_dtype = *precision.param_dtype;
  } else if (IsHalf(config->compute_dtype)) {
    // The job's config may say so instead of the model's options.
    precision.param_dtype = config->compute_dtype;
    if (!precision.reduce_dtype.has_value()) precision.reduce_dtype = config->reduce_dtype;
  }
  config->reduce_dtype = precision.reduce_dtype.value_or(config->reduce_dtype);
  config->keep_low_precision_gradients |= precision.keep_low_precision_grads;
  return precision;
}

}  // namespace tessera
