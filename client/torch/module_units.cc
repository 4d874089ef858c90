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

// Asks a policy about every module, children before parents.
class Choice {
 public:
  // Distinct parameters that are in no unit yet.
  using Parameters = std::unordered_set<const c10::TensorImpl*>;

  explicit Choice(const WrapPolicy& policy) : policy_(policy) {}

  // Returns what the subtree leaves to the unit above it.
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
  static void Add(const torch::Tensor& tensor, Parameters* parameters) {
    if (tensor.defined()) parameters->insert(tensor.unsafeGetTensorImpl());
  }
  static int64_t Numel(const Parameters& parameters) {
    int64_t numel = 0;
    for (const c10::TensorImpl* tensor : parameters) numel += tensor->numel();
    return numel;
  }

  const WrapPolicy& policy_;
  std::unordered_set<const ShardedBase*> chosen_;
};

class Walk {
 public:
  explicit Walk(std::unordered_set<const ShardedBase*> chosen) : chosen_(std::move(chosen)) {}

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
      RETURN_IF_ERROR(AddParameter(unit, prefix + item.key(), item.value()));
    }
    for (const auto& child : module.named_children()) {
      RETURN_IF_ERROR(Visit(*child.value(), absl::StrCat(prefix, child.key(), "."), unit));
    }
    return absl::OkStatus();
  }

  void AddUnit(ShardedBase* module, const std::string& name) {
    units_.modules.push_back(module);
    units_.parameters.emplace_back();
    units_.model.units.push_back({name, {}});
  }

  ModuleUnits Take() { return std::move(units_); }

 private:
  absl::Status AddParameter(int unit, const std::string& name, const torch::Tensor& tensor) {
    if (!tensor.defined()) return absl::OkStatus();
    TensorSpec spec;
    spec.name = name;
    spec.shape = tensor.sizes().vec();
    spec.requires_grad = tensor.requires_grad();
    ASSIGN_OR_RETURN(spec.dtype, FromScalarType(tensor.scalar_type(), name));
    const auto [it, first] = owners_.try_emplace(tensor.unsafeGetTensorImpl(), Owner{unit, name});
    if (first) {
      units_.parameters[unit].push_back(tensor);
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
  ModuleUnits units_;
  std::unordered_map<const c10::TensorImpl*, Owner> owners_;
};

}  // namespace

absl::StatusOr<ModuleUnits> FindUnits(torch::nn::Module& root, const WrapPolicy& policy) {
  auto* sharded = dynamic_cast<ShardedBase*>(&root);
  if (sharded == nullptr)
    return absl::InvalidArgumentError("the root module is no tessera::Sharded<>");
  Choice choice(policy);
  choice.Decide(root, "");
  Walk walk(choice.Take());
  walk.AddUnit(sharded, "root");
  RETURN_IF_ERROR(walk.Visit(root, "", 0));
  ModuleUnits units = walk.Take();
  RETURN_IF_ERROR(ValidateModel(units.model));
  return units;
}

}  // namespace tessera
