#include "client/torch/module_units.h"

#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/precision_rules.h"

namespace tessera {
namespace {

struct Owner {
  int unit;
  std::string name;
};

absl::StatusOr<DType> FromScalarType(torch::ScalarType type, const std::string& name) {
  switch (type) {
    case torch::kFloat32:
      return DType::kFp32;
    case torch::kFloat64:
      return DType::kFp64;
    case torch::kBFloat16:
      return DType::kBf16;
    case torch::kFloat16:
      return DType::kFp16;
    case torch::kInt64:
      return DType::kInt64;
    case torch::kInt32:
      return DType::kInt32;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", name, "': its dtype cannot be sharded"));
  }
}

using Parameters = std::unordered_set<const c10::TensorImpl*>;

// Asks a policy about every module, children before parents.
class Choice {
 public:
  Choice(const WrapPolicy& policy, const Parameters& ignored, const MixedPrecision& precision)
      : policy_(policy), ignored_(ignored), precision_(precision) {}

  // Returns the distinct parameters that the subtree leaves to the unit above it. `asks`: the
  // policy may choose in it.
  Parameters Decide(const torch::nn::Module& module, const std::string& name, bool asks = true) {
    Parameters all;
    for (const torch::Tensor& tensor : module.parameters()) Add(tensor, &all);
    asks = asks && policy_.descend({name, module, Numel(all)});
    const bool kept = !all.empty() && KeepsFullPrecision(precision_, module, name);
    Parameters left;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) Add(item.value(), &left);
    for (const auto& child : module.named_children()) {
      const std::string child_name = name.empty() ? child.key() : name + "." + child.key();
      left.merge(Decide(*child.value(), child_name, asks));
    }
    const auto* sharded = dynamic_cast<const ShardedBase*>(&module);
    if (sharded == nullptr || name.empty()) return left;
    if (!(kept && !left.empty()) && !(asks && policy_.wrap({name, module, Numel(left)})))
      return left;
    chosen_.insert(sharded);
    return {};
  }

  std::unordered_set<const ShardedBase*> Take() { return std::move(chosen_); }

 private:
  void Add(const torch::Tensor& tensor, Parameters* parameters) const {
    if (!tensor.defined() || ignored_.count(tensor.unsafeGetTensorImpl()) > 0) return;
    parameters->insert(tensor.unsafeGetTensorImpl());
  }
  static int64_t Numel(const Parameters& parameters) {
    int64_t numel = 0;
    for (const c10::TensorImpl* tensor : parameters) numel += tensor->numel();
    return numel;
  }

  const WrapPolicy& policy_;
  const Parameters& ignored_;
  const MixedPrecision& precision_;
  std::unordered_set<const ShardedBase*> chosen_;
};

class Walk {
 public:
  Walk(std::unordered_set<const ShardedBase*> chosen, const Parameters& ignored,
       const MixedPrecision& precision)
      : chosen_(std::move(chosen)), ignored_(ignored), precision_(precision) {}

  // `kept`: something that encloses the module is kept in full precision.
  absl::Status Visit(torch::nn::Module& module, const std::string& prefix, int unit, bool kept) {
    auto* sharded = dynamic_cast<ShardedBase*>(&module);
    if (sharded != nullptr && sharded->attached()) {
      return absl::FailedPreconditionError(absl::StrCat(
          prefix.empty() ? "the root" : "module '" + prefix.substr(0, prefix.size() - 1) + "'",
          " is attached to a ShardedModel already"));
    }
    const std::string name = prefix.substr(0, prefix.empty() ? 0 : prefix.size() - 1);
    const bool begins = !kept && KeepsFullPrecision(precision_, module, name);
    if (begins && sharded == nullptr && !AllIgnored(module)) {
      return absl::InvalidArgumentError(
          absl::StrCat("module '", name,
                       "' is kept in full precision, so it must be in a tessera::Sharded<> that "
                       "holds nothing else (or MixedPrecision::full_precision must not name it)"));
    }
    kept |= begins;
    if (chosen_.count(sharded) > 0) {
      unit = static_cast<int>(units_.modules.size());
      AddUnit(sharded, name, kept);
    }
    if (!kept) AddBuffers(unit, module);
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      RETURN_IF_ERROR(AddParameter(unit, prefix + item.key(), item.value(), {&module, item.key()}));
    }
    for (const auto& child : module.named_children()) {
      RETURN_IF_ERROR(Visit(*child.value(), absl::StrCat(prefix, child.key(), "."), unit, kept));
    }
    return absl::OkStatus();
  }

  void AddUnit(ShardedBase* module, const std::string& name, bool kept) {
    const bool is_root = units_.modules.empty();
    units_.modules.push_back(module);
    units_.parameters.emplace_back();
    units_.sites.emplace_back();
    units_.in_full_precision.push_back(false);
    units_.buffers.emplace_back();
    UnitSpec& spec = units_.model.units.emplace_back();
    spec.name = name;
    const UnitPrecision of_unit =
        kept ? UnitPrecision() : PrecisionOf(*module, is_root ? "" : name);
    of_units_.push_back(of_unit);
    if (of_unit.param_dtype != precision_.param_dtype) {
      spec.compute_dtype = of_unit.param_dtype.value_or(DType::kFp32);
    }
    if (spec.compute_dtype.has_value() || of_unit.reduce_dtype != precision_.reduce_dtype) {
      spec.reduce_dtype = of_unit.reduce_dtype.value_or(of_unit.param_dtype.value_or(DType::kFp32));
    }
    units_.compute_dtypes.push_back(ScalarTypeOf(of_unit.param_dtype.value_or(DType::kFp32)));
    units_.casts_results_back.push_back(kept);
    std::optional<torch::ScalarType>& input = units_.input_dtypes.emplace_back();
    if (kept) {
      input = torch::kFloat32;
    } else if (of_unit.param_dtype.has_value() &&
               (is_root ? precision_.cast_root_forward_inputs : of_unit.cast_forward_inputs)) {
      input = units_.compute_dtypes.back();
    }
  }

  ModuleUnits Take() { return std::move(units_); }

 private:
  bool AllIgnored(const torch::nn::Module& module) const {
    for (const torch::Tensor& tensor : module.parameters()) {
      if (tensor.defined() && ignored_.count(tensor.unsafeGetTensorImpl()) == 0) return false;
    }
    return true;
  }

  UnitPrecision PrecisionOf(const ShardedBase& unit, const std::string& name) const {
    if (precision_.per_unit == nullptr) return precision_;
    const auto& module = dynamic_cast<const torch::nn::Module&>(unit);
    int64_t numel = 0;
    for (const torch::Tensor& parameter : module.parameters()) numel += parameter.numel();
    return precision_.per_unit({name, module, numel}, precision_);
  }

  void AddBuffers(int unit, const torch::nn::Module& module) {
    const std::optional<DType> dtype = of_units_[unit].buffer_dtype;
    if (!dtype.has_value()) return;
    for (const torch::Tensor& buffer : module.buffers(/*recurse=*/false)) {
      if (!buffer.defined() || !buffer.is_floating_point()) continue;
      if (ignored_.count(buffer.unsafeGetTensorImpl()) > 0) continue;
      if (!cast_buffers_.insert(buffer.unsafeGetTensorImpl()).second) continue;
      units_.buffers[unit].push_back({buffer, ScalarTypeOf(*dtype)});
    }
  }

  absl::Status AddParameter(int unit, const std::string& name, const torch::Tensor& tensor,
                            ParameterSite site) {
    if (!tensor.defined() || ignored_.count(tensor.unsafeGetTensorImpl()) > 0)
      return absl::OkStatus();
    TensorSpec spec;
    spec.name = name;
    spec.shape = tensor.sizes().vec();
    spec.requires_grad = tensor.requires_grad();
    ASSIGN_OR_RETURN(spec.dtype, FromScalarType(tensor.scalar_type(), name));
    const auto [it, first] = owners_.try_emplace(tensor.unsafeGetTensorImpl(), Owner{unit, name});
    if (first) {
      units_.parameters[unit].push_back(tensor);
      units_.sites[unit].push_back(std::move(site));
    } else if (it->second.unit != unit) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", name, "' of unit '", units_.model.units[unit].name, "' is also '",
          it->second.name, "' of unit '", units_.model.units[it->second.unit].name,
          "': a parameter may be shared within a unit only"));
    } else {
      spec.shared_with = it->second.name;
    }
    units_.model.units[unit].parameters.push_back(std::move(spec));
    return absl::OkStatus();
  }

  const std::unordered_set<const ShardedBase*> chosen_;
  const Parameters& ignored_;
  const MixedPrecision& precision_;
  ModuleUnits units_;
  std::vector<UnitPrecision> of_units_;
  std::unordered_set<const c10::TensorImpl*> cast_buffers_;
  std::unordered_map<const c10::TensorImpl*, Owner> owners_;
};

// What is in full precision is in fp64 where the unit's parameters are.
void UseOwnPrecision(ModuleUnits* units) {
  for (size_t unit = 0; unit < units->modules.size(); ++unit) {
    const std::vector<TensorSpec>& parameters = units->model.units[unit].parameters;
    if (parameters.empty() || parameters[0].dtype != DType::kFp64) continue;
    if (units->compute_dtypes[unit] == torch::kFloat32)
      units->compute_dtypes[unit] = torch::kFloat64;
    if (units->input_dtypes[unit] == torch::kFloat32) units->input_dtypes[unit] = torch::kFloat64;
  }
}

void NameStrategies(const WrapPolicy& policy, ModuleUnits* units) {
  if (policy.strategy == nullptr) return;
  for (size_t unit = 0; unit < units->modules.size(); ++unit) {
    const auto& module = dynamic_cast<const torch::nn::Module&>(*units->modules[unit]);
    int64_t numel = 0;
    for (const torch::Tensor& parameter : module.parameters()) numel += parameter.numel();
    UnitSpec& spec = units->model.units[unit];
    spec.strategy = policy.strategy({unit == 0 ? "" : spec.name, module, numel});
  }
}

absl::Status CheckIgnored(const torch::nn::Module& root, const IgnoredStates& ignored) {
  if (!ignored.modules.empty() && !ignored.parameters.empty())
    return absl::InvalidArgumentError("ignored modules and ignored parameters are both given");
  for (const auto& module : ignored.modules) {
    if (module == nullptr) return absl::InvalidArgumentError("an ignored module is null");
    if (module.get() == &root)
      return absl::InvalidArgumentError("the root module cannot be ignored");
  }
  for (const torch::Tensor& parameter : ignored.parameters) {
    if (!parameter.defined())
      return absl::InvalidArgumentError("an ignored parameter is an undefined tensor");
  }
  return absl::OkStatus();
}

// The parameters and buffers that `module` and what is below it hold, but for those of Sharded<>
// that a policy may choose: whoever ignores a subtree leaves its units alone.
void IgnoreSubtree(const torch::nn::Module& module, Parameters* ignored) {
  for (const torch::Tensor& tensor : module.parameters(/*recurse=*/false)) {
    if (tensor.defined()) ignored->insert(tensor.unsafeGetTensorImpl());
  }
  for (const torch::Tensor& tensor : module.buffers(/*recurse=*/false)) {
    if (tensor.defined()) ignored->insert(tensor.unsafeGetTensorImpl());
  }
  for (const auto& child : module.children()) IgnoreSubtree(*child, ignored);
}

// Those below `module` that stay units.
void KeepUnits(const torch::nn::Module& module,
               const std::unordered_set<const ShardedBase*>& chosen, bool in_unit,
               Parameters* ignored) {
  in_unit |= chosen.count(dynamic_cast<const ShardedBase*>(&module)) > 0;
  for (const torch::Tensor& tensor : module.parameters(/*recurse=*/false)) {
    if (in_unit && tensor.defined()) ignored->erase(tensor.unsafeGetTensorImpl());
  }
  for (const torch::Tensor& tensor : module.buffers(/*recurse=*/false)) {
    if (in_unit && tensor.defined()) ignored->erase(tensor.unsafeGetTensorImpl());
  }
  for (const auto& child : module.children()) KeepUnits(*child, chosen, in_unit, ignored);
}

}  // namespace

absl::StatusOr<ModuleUnits> FindUnits(torch::nn::Module& root, const WrapPolicy& policy,
                                      const IgnoredStates& ignored,
                                      const MixedPrecision& precision) {
  auto* sharded = dynamic_cast<ShardedBase*>(&root);
  if (sharded == nullptr)
    return absl::InvalidArgumentError("the root module is no tessera::Sharded<>");
  RETURN_IF_ERROR(CheckIgnored(root, ignored));
  Parameters left_out;
  for (const torch::Tensor& tensor : ignored.parameters)
    left_out.insert(tensor.unsafeGetTensorImpl());
  for (const auto& module : ignored.modules) IgnoreSubtree(*module, &left_out);
  Choice choice(policy, left_out, precision);
  choice.Decide(root, "");
  auto chosen = choice.Take();
  for (const auto& module : ignored.modules) {
    if (chosen.count(dynamic_cast<const ShardedBase*>(module.get())) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("an ignored module (", module->name(), ") is a unit"));
    }
    KeepUnits(*module, chosen, /*in_unit=*/false, &left_out);
  }
  Walk walk(std::move(chosen), left_out, precision);
  walk.AddUnit(sharded, "root", KeepsFullPrecision(precision, root, ""));
  RETURN_IF_ERROR(walk.Visit(root, "", 0, /*kept=*/false));
  ModuleUnits units = walk.Take();
  UseOwnPrecision(&units);
  NameStrategies(policy, &units);
  RETURN_IF_ERROR(ValidateModel(units.model));
  return units;
}

std::vector<int> UnitsBelow(const ModuleUnits& units, const torch::nn::Module& module,
                            bool recurse) {
  std::vector<int> found;
  const auto* sharded = dynamic_cast<const ShardedBase*>(&module);
  for (size_t unit = 0; unit < units.modules.size(); ++unit) {
    if (units.modules[unit] == sharded) found.push_back(unit);
  }
  if (!recurse) return found;
  for (const auto& child : module.children()) {
    const std::vector<int> below = UnitsBelow(units, *child, recurse);
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

}  // namespace tessera
