#include "client/torch/module_units.h"

#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

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
  Choice(const WrapPolicy& policy, const Parameters& ignored)
      : policy_(policy), ignored_(ignored) {}

  // Returns the distinct parameters that the subtree leaves to the unit above it.
  Parameters Decide(const torch::nn::Module& module, const std::string& name) {
    Parameters all;
    for (const torch::Tensor& tensor : module.parameters()) Add(tensor, &all);
    if (!policy_.descend({name, module, Numel(all)})) return all;
    Parameters left;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) Add(item.value(), &left);
    for (const auto& child : module.named_children()) {
      left.merge(Decide(*child.value(), name.empty() ? child.key() : name + "." + child.key()));
    }
    const auto* sharded = dynamic_cast<const ShardedBase*>(&module);
    if (sharded == nullptr || name.empty() || !policy_.wrap({name, module, Numel(left)})) {
      return left;
    }
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
  std::unordered_set<const ShardedBase*> chosen_;
};

class Walk {
 public:
  Walk(std::unordered_set<const ShardedBase*> chosen, const Parameters& ignored)
      : chosen_(std::move(chosen)), ignored_(ignored) {}

  absl::Status Visit(torch::nn::Module& module, const std::string& prefix, int unit) {
    auto* sharded = dynamic_cast<ShardedBase*>(&module);
    if (sharded != nullptr && sharded->attached()) {
      return absl::FailedPreconditionError(absl::StrCat(
          prefix.empty() ? "the root" : "module '" + prefix.substr(0, prefix.size() - 1) + "'",
          " is attached to a ShardedModel already"));
    }
    if (chosen_.count(sharded) > 0) {
      unit = static_cast<int>(units_.modules.size());
      AddUnit(sharded, prefix.substr(0, prefix.size() - 1));
    }
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      RETURN_IF_ERROR(AddParameter(unit, prefix + item.key(), item.value(), {&module, item.key()}));
    }
    for (const auto& child : module.named_children()) {
      RETURN_IF_ERROR(Visit(*child.value(), absl::StrCat(prefix, child.key(), "."), unit));
    }
    return absl::OkStatus();
  }

  void AddUnit(ShardedBase* module, const std::string& name) {
    units_.modules.push_back(module);
    units_.parameters.emplace_back();
    units_.sites.emplace_back();
    units_.model.units.push_back({name, {}});
  }

  ModuleUnits Take() { return std::move(units_); }

 private:
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
  ModuleUnits units_;
  std::unordered_map<const c10::TensorImpl*, Owner> owners_;
};

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

// The parameters that `module` and what is below it hold, but for those of Sharded<> that a policy
// may choose: whoever ignores a subtree leaves its units alone.
void IgnoreSubtree(const torch::nn::Module& module, Parameters* ignored) {
  for (const torch::Tensor& tensor : module.parameters(/*recurse=*/false)) {
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
  for (const auto& child : module.children()) KeepUnits(*child, chosen, in_unit, ignored);
}

}  // namespace

absl::StatusOr<ModuleUnits> FindUnits(torch::nn::Module& root, const WrapPolicy& policy,
                                      const IgnoredStates& ignored) {
  auto* sharded = dynamic_cast<ShardedBase*>(&root);
  if (sharded == nullptr)
    return absl::InvalidArgumentError("the root module is no tessera::Sharded<>");
  RETURN_IF_ERROR(CheckIgnored(root, ignored));
  Parameters left_out;
  for (const torch::Tensor& tensor : ignored.parameters)
    left_out.insert(tensor.unsafeGetTensorImpl());
  for (const auto& module : ignored.modules) IgnoreSubtree(*module, &left_out);
  Choice choice(policy, left_out);
  choice.Decide(root, "");
  auto chosen = choice.Take();
  for (const auto& module : ignored.modules) {
    if (chosen.count(dynamic_cast<const ShardedBase*>(module.get())) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("an ignored module (", module->name(), ") is a unit"));
    }
    KeepUnits(*module, chosen, /*in_unit=*/false, &left_out);
  }
  Walk walk(std::move(chosen), left_out);
  walk.AddUnit(sharded, "root");
  RETURN_IF_ERROR(walk.Visit(root, "", 0));
  ModuleUnits units = walk.Take();
  RETURN_IF_ERROR(ValidateModel(units.model));
  return units;
}

}  // namespace tessera
