#include "client/torch/unit_choice.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/torch/precision_rules.h"

namespace tessera {
namespace {

// Asks a policy about every module, children before parents.
class Asking {
 public:
  // `choice` has the groups and what is ignored; the rest is added to it.
  Asking(const WrapPolicy& policy, const MixedPrecision& precision, UnitChoice* choice)
      : policy_(policy), precision_(precision), choice_(choice) {}

  // Distinct parameters: those that count, and those that are ignored too.
  struct Left {
    TensorSet counted, all;
  };

  // Returns what the subtree leaves to the unit above it. `asks`: the policy may choose in it.
  Left Decide(const torch::nn::Module& module, const std::string& name, bool asks = true) {
    TensorSet all;
    // All of the subtree, for the question whether to descend.
    for (const torch::Tensor& tensor : module.parameters()) Add(tensor, &all);
    asks = asks && policy_.descend({name, module, Numel(all)});
    const bool kept = !all.empty() && KeepsFullPrecision(precision_, module, name);
    Left left;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      Add(item.value(), &left.counted);
      if (item.value().defined()) left.all.insert(item.value().unsafeGetTensorImpl());
    }
    for (const auto& child : module.named_children()) {
      const std::string child_name = name.empty() ? child.key() : name + "." + child.key();
      Left below = Decide(*child.value(), child_name, asks);
      left.counted.merge(below.counted);
      left.all.merge(below.all);
    }
    const auto* sharded = dynamic_cast<const ShardedBase*>(&module);
    // A group was chosen by name, whatever the policy says.
    if (choice_->Has(sharded)) return {};  // With others.
    if (sharded == nullptr || name.empty()) return left;
    const bool wraps = asks && policy_.wrap({name, module, Numel(left.counted)});
    if (!kept && !wraps) return left;
    // Ignored parameters count here, unlike in sizes.
    if (left.all.empty()) return left;  // Nothing to shard.
    choice_->chosen.emplace(sharded, UnitChoice::kAlone);
    return {};
  }

 private:
  void Add(const torch::Tensor& tensor, TensorSet* parameters) const {
    if (!tensor.defined() || choice_->ignored.count(tensor.unsafeGetTensorImpl()) > 0) return;
    parameters->insert(tensor.unsafeGetTensorImpl());
  }
  static int64_t Numel(const TensorSet& parameters) {
    int64_t numel = 0;
    for (const c10::TensorImpl* tensor : parameters) numel += tensor->numel();
    return numel;
  }

  const WrapPolicy& policy_;
  const MixedPrecision& precision_;
  UnitChoice* const choice_;
};

// Adds a group of modules to what is chosen.
absl::Status AddGroup(torch::nn::Module& root, const std::vector<std::string>& names,
                      UnitChoice* choice) {
  UnitGroup group;
  group.name = absl::StrJoin(names, ", ");
  const auto refused = [&](const std::string& name, const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("unit of several modules '", group.name, "': '", name, "' ", why));
  };
  if (names.empty()) return absl::InvalidArgumentError("a unit of several modules names none");
  const auto modules = root.named_modules("", /*include_self=*/false);
  for (const std::string& name : names) {
    const auto* found = modules.find(name);
    if (found == nullptr) return refused(name, "is not a module below the root");
    const auto* sharded = dynamic_cast<const ShardedBase*>(found->get());
    if (sharded == nullptr) return refused(name, "is not a tessera::Sharded<>");
    for (const std::string& other : names) {
      if (absl::StartsWith(name, absl::StrCat(other, ".")))
        return refused(name, "is inside of another one of them");
    }
    const int index = static_cast<int>(choice->groups.size());
    if (!choice->chosen.emplace(sharded, index).second)
      return refused(name, "is in a unit of several modules already");
    group.modules.push_back(found->get());
  }
  choice->groups.push_back(std::move(group));
  return absl::OkStatus();
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
// that a policy may choose: ignoring a subtree leaves its units alone.
void IgnoreSubtree(const torch::nn::Module& module, TensorSet* ignored) {
  for (const torch::Tensor& tensor : module.parameters(/*recurse=*/false)) {
    if (tensor.defined()) ignored->insert(tensor.unsafeGetTensorImpl());
  }
  for (const torch::Tensor& tensor : module.buffers(/*recurse=*/false)) {
    if (tensor.defined()) ignored->insert(tensor.unsafeGetTensorImpl());
  }
  for (const auto& child : module.children()) IgnoreSubtree(*child, ignored);
}

// Those below `module` that stay units.
void KeepUnits(const torch::nn::Module& module, bool in_unit, UnitChoice* choice) {
  in_unit |= choice->Has(dynamic_cast<const ShardedBase*>(&module));
  for (const torch::Tensor& tensor : module.parameters(/*recurse=*/false)) {
    if (in_unit && tensor.defined()) choice->ignored.erase(tensor.unsafeGetTensorImpl());
  }
  for (const torch::Tensor& tensor : module.buffers(/*recurse=*/false)) {
    if (in_unit && tensor.defined()) choice->ignored.erase(tensor.unsafeGetTensorImpl());
  }
  for (const auto& child : module.children()) KeepUnits(*child, in_unit, choice);
}

}  // namespace

absl::StatusOr<UnitChoice> ChooseUnits(torch::nn::Module& root, const WrapPolicy& policy,
                                       const IgnoredStates& ignored,
                                       const MixedPrecision& precision) {
  RETURN_IF_ERROR(CheckIgnored(root, ignored));
  UnitChoice choice;
  for (const torch::Tensor& tensor : ignored.parameters)
    choice.ignored.insert(tensor.unsafeGetTensorImpl());
  for (const auto& module : ignored.modules) IgnoreSubtree(*module, &choice.ignored);
  for (const auto& names : policy.groups) RETURN_IF_ERROR(AddGroup(root, names, &choice));
  // Asked before the ignored ones are given back: they do not count for sizes.
  choice.root_is_unit = !Asking(policy, precision, &choice).Decide(root, "").counted.empty();
  for (const auto& module : ignored.modules) {
    if (choice.Has(dynamic_cast<const ShardedBase*>(module.get()))) {
      return absl::InvalidArgumentError(
          absl::StrCat("an ignored module (", module->name(), ") is a unit"));
    }
    KeepUnits(*module, /*in_unit=*/false, &choice);
  }
  return choice;
}

}  // namespace tessera
