#include "client/torch/module_units.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "client/torch/cluster_tensor.h"
#include "client/torch/precision_rules.h"
#include "client/torch/unit_choice.h"

namespace tessera {
namespace {

constexpr int kNoUnit = ShardedBase::kRootWithoutUnit;

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
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", name, "' is ", c10::toString(type),
          ", which cannot be sharded: make it fp32 or fp64, or name it in AttachOptions::ignored"));
  }
}

// Of a parameter or buffer, `name`. Errors: InvalidArgument  it cannot be carried.
absl::Status CheckLayout(const torch::Tensor& tensor, absl::string_view name) {
  const auto refused = [name](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " ", why, ": make it a plain dense tensor, or name it in AttachOptions::ignored"));
  };
  if (tensor.layout() != torch::kStrided) {
    std::ostringstream layout;
    layout << tensor.layout();
    return refused(absl::StrCat("has the layout ", layout.str()));
  }
  if (tensor.is_quantized()) return refused("is quantized");
  if (!tensor.is_cpu() && !tensor.is_cuda() && !tensor.is_meta())
    return refused(absl::StrCat("is on the device ", tensor.device().str()));
  return absl::OkStatus();
}

int64_t NumelOf(const std::vector<const torch::nn::Module*>& modules) {
  int64_t numel = 0;
  for (const torch::nn::Module* module : modules) {
    for (const torch::Tensor& parameter : module->parameters()) numel += parameter.numel();
  }
  return numel;
}

class Walk {
 public:
  Walk(const WrapPolicy& policy, const UnitChoice& choice, const MixedPrecision& precision)
      : policy_(policy),
        choice_(choice),
        precision_(precision),
        unit_of_group_(choice.groups.size(), -1) {}

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
    if (sharded != nullptr) RETURN_IF_ERROR(CheckNotEmptied(*sharded, module, name));
    if (choice_.Has(sharded)) {
      // One that is registered under several names is one unit.
      const auto [known, first] = units_.unit_of_module.try_emplace(sharded, 0);
      if (first) {
        ASSIGN_OR_RETURN(known->second, UnitOf(sharded, name, kept));
      }
      unit = known->second;
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false))
      RETURN_IF_ERROR(CheckBuffer(prefix + item.key(), item.value()));
    // What is kept in full precision keeps its buffers, too.
    if (!kept) AddBuffers(unit, module);
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      RETURN_IF_ERROR(AddParameter(unit, prefix + item.key(), item.value(), {&module, item.key()}));
    }
    for (const auto& child : module.named_children()) {
      RETURN_IF_ERROR(Visit(*child.value(), absl::StrCat(prefix, child.key(), "."), unit, kept));
    }
    return absl::OkStatus();
  }

  // `of`: the candidate that stands for the unit, of which `module` is the first.
  void AddUnit(ShardedBase* module, const WrapCandidate& of, bool kept, bool is_root = false) {
    units_.modules.push_back({module});
    units_.parameters.emplace_back();
    units_.sites.emplace_back();
    units_.in_full_precision.push_back(false);
    UnitSpec& spec = units_.model.units.emplace_back();
    spec.name = is_root ? "root" : of.name;
    if (policy_.strategy != nullptr) spec.strategy = policy_.strategy(of);
    UnitPrecision of_unit;
    if (!kept)
      of_unit =
          precision_.per_unit ? precision_.per_unit(of, precision_) : UnitPrecision(precision_);
    of_units_.push_back(of_unit);
    kept_.push_back(kept);
    // Set only where it differs: elsewhere the model's holds.
    if (of_unit.param_dtype != precision_.param_dtype) {
      spec.compute_dtype = of_unit.param_dtype.value_or(DType::kFp32);
    }
    // Where nothing is said, gradients are reduced in the dtype of the parameters.
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

  // Parameters move into the job's memory one by one, so what shares memory now would not then.
  absl::Status CheckMemory() {
    std::sort(memory_.begin(), memory_.end(),
              [](const Memory& a, const Memory& b) { return a.begin < b.begin; });
    std::vector<const Memory*> open;  // Earlier ones that end after the next one begins.
    // By begin: only those that are open can overlap with the next.
    for (const Memory& memory : memory_) {
      open.erase(std::remove_if(open.begin(), open.end(),
                                [&](const Memory* other) { return other->end <= memory.begin; }),
                 open.end());
      for (const Memory* other : open) {
        // Two buffers may share memory: they are not moved.
        if (!(memory.is_parameter || other->is_parameter) || !ShareElements(*other, memory))
          continue;
        return absl::InvalidArgumentError(absl::StrCat(
            other->name, " and ", memory.name,
            " share memory, which would come apart: register one tensor in both places, "
            "instead of set_data"));
      }
      open.push_back(&memory);
    }
    return absl::OkStatus();
  }

  ModuleUnits Take() { return std::move(units_); }

 private:
  bool AllIgnored(const torch::nn::Module& module) const {
    for (const torch::Tensor& tensor : module.parameters()) {
      if (tensor.defined() && choice_.ignored.count(tensor.unsafeGetTensorImpl()) == 0)
        return false;
    }
    return true;
  }

  // A model that ended leaves its module's parameters without elements.
  static absl::Status CheckNotEmptied(const ShardedBase& sharded, const torch::nn::Module& module,
                                      const std::string& name) {
    if (!sharded.emptied()) return absl::OkStatus();
    for (const auto& item : module.named_parameters()) {
      if (item.value().numel() > 0) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          name.empty() ? "the root" : "module '" + name + "'",
          " was attached before: the ShardedModel that ended left its parameter '", item.key(),
          "' without elements. Create a new module; it gets the job's values if the job "
          "exists"));
    }
    return absl::OkStatus();
  }

  // The unit of a chosen module, which begins here or has begun at another module of its group.
  absl::StatusOr<int> UnitOf(ShardedBase* module, const std::string& name, bool kept) {
    const int next = static_cast<int>(units_.modules.size());
    const int group = choice_.chosen.at(module);
    if (group == UnitChoice::kAlone) {
      const auto& alone = dynamic_cast<const torch::nn::Module&>(*module);
      AddUnit(module, {name, alone, NumelOf({&alone})}, kept);
      return next;
    }
    int& unit = unit_of_group_[group];
    const UnitGroup& members = choice_.groups[group];
    if (unit < 0) {
      unit = next;
      AddUnit(module, {members.name, *members.modules.front(), NumelOf(members.modules)}, kept);
      return unit;
    }
    // A unit computes in one precision.
    if (kept_[unit] != kept) {
      return absl::InvalidArgumentError(absl::StrCat("unit of several modules '", members.name,
                                                     "': '", name, "' is ", kept ? "" : "not ",
                                                     "kept in full precision, unlike the others"));
    }
    units_.modules[unit].push_back(module);
    return unit;
  }

  absl::Status CheckBuffer(const std::string& name, const torch::Tensor& tensor) {
    if (!tensor.defined() || choice_.ignored.count(tensor.unsafeGetTensorImpl()) > 0)
      return absl::OkStatus();
    RETURN_IF_ERROR(CheckLayout(tensor, absl::StrCat("buffer '", name, "'")));
    AddMemory(tensor, absl::StrCat("buffer '", name, "'"), /*is_parameter=*/false);
    return absl::OkStatus();
  }

  // Where it is, for CheckMemory.
  void AddMemory(const torch::Tensor& tensor, std::string name, bool is_parameter) {
    if (tensor.is_meta() || tensor.numel() == 0) return;
    int64_t last = 0;
    for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
    memory_.push_back(
        {begin, begin + (last + 1) * tensor.element_size(), is_parameter, tensor, std::move(name)});
  }

  void AddBuffers(int unit, const torch::nn::Module& module) {
    const UnitPrecision& of_model = precision_;
    // The root without a unit follows the model.
    const UnitPrecision& of_unit = unit == kNoUnit ? of_model : of_units_[unit];
    const std::optional<DType> dtype = of_unit.buffer_dtype;
    if (!dtype.has_value()) return;
    for (const torch::Tensor& buffer : module.buffers(/*recurse=*/false)) {
      if (!buffer.defined() || !buffer.is_floating_point()) continue;
      if (choice_.ignored.count(buffer.unsafeGetTensorImpl()) > 0) continue;
      // A buffer that is registered twice is cast once.
      if (!cast_buffers_.insert(buffer.unsafeGetTensorImpl()).second) continue;
      units_.buffers.push_back({buffer, ScalarTypeOf(*dtype)});
    }
  }

  absl::Status AddParameter(int unit, const std::string& name, const torch::Tensor& tensor,
                            ParameterSite site) {
    if (!tensor.defined() || choice_.ignored.count(tensor.unsafeGetTensorImpl()) > 0)
      return absl::OkStatus();
    RETURN_IF_ERROR(CheckLayout(tensor, absl::StrCat("parameter '", name, "'")));
    if (IsClusterTensor(tensor)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "parameter '", name,
          "' belongs to another ShardedModel of this process already, and one job trains a "
          "parameter: attach both modules as one model, or name it in AttachOptions::ignored"));
    }
    // Checked once for all: elements that are one in memory cannot be updated apart.
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", name,
          "' is expanded: several of its elements are one in memory, so none can be trained; "
          "register it as contiguous()"));
    }
    TensorSpec spec;
    spec.name = name;
    spec.shape = tensor.sizes().vec();
    spec.requires_grad = tensor.requires_grad();
    ASSIGN_OR_RETURN(spec.dtype, FromScalarType(tensor.scalar_type(), name));
    const auto [it, first] = owners_.try_emplace(tensor.unsafeGetTensorImpl(), Owner{unit, name});
    if (first) {
      AddMemory(tensor, absl::StrCat("parameter '", name, "'"), /*is_parameter=*/true);
      units_.parameters[unit].push_back(tensor);
      units_.sites[unit].push_back(std::move(site));
    } else if (it->second.unit != unit) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", name, "' of unit '", units_.model.units[unit].name, "' is also '",
          it->second.name, "' of unit '", units_.model.units[it->second.unit].name,
          "': a parameter may be shared within a unit only; let WrapPolicy::groups make one unit "
          "of "
          "the modules that share it"));
    } else {
      spec.shared_with = it->second.name;
    }
    units_.model.units[unit].parameters.push_back(std::move(spec));
    return absl::OkStatus();
  }

  const WrapPolicy& policy_;
  const UnitChoice& choice_;
  const MixedPrecision& precision_;
  std::vector<int> unit_of_group_;  // -1: of none yet.
  ModuleUnits units_;
  std::vector<UnitPrecision> of_units_;
  std::vector<bool> kept_;  // By unit: in full precision.
  std::unordered_set<const c10::TensorImpl*> cast_buffers_;
  struct Memory {
    uintptr_t begin, end;
    bool is_parameter;
    torch::Tensor tensor;
    std::string name;
  };
  // Of two whose memory overlaps: slices of one tensor, columns of it for instance, may have no
  // element in common.
  static bool ShareElements(const Memory& a, const Memory& b) {
    if (a.tensor.is_same(b.tensor)) return false;
    const int64_t bytes = a.tensor.element_size();
    const bool dense = a.tensor.is_contiguous() && b.tensor.is_contiguous();
    // Dense ones that overlap have elements in common. Other sizes and odd offsets are not
    // examined.
    if (dense || bytes != b.tensor.element_size() || (b.begin - a.begin) % bytes != 0) return true;
    // Marks the elements of one, and looks for marks at the other's.
    const torch::Tensor seen = torch::zeros(
        {static_cast<int64_t>(std::max(a.end, b.end) - a.begin) / bytes}, torch::kBool);
    seen.as_strided(a.tensor.sizes(), a.tensor.strides()).fill_(true);
    return seen
        .as_strided(b.tensor.sizes(), b.tensor.strides(),
                    static_cast<int64_t>(b.begin - a.begin) / bytes)
        .any()
        .item<bool>();
  }
  std::vector<Memory> memory_;
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
    if (units->root_input_dtype == torch::kFloat32) units->root_input_dtype = torch::kFloat64;
  }
}

}  // namespace

absl::StatusOr<ModuleUnits> FindUnits(torch::nn::Module& root, const WrapPolicy& policy,
                                      const IgnoredStates& ignored,
                                      const MixedPrecision& precision) {
  auto* sharded = dynamic_cast<ShardedBase*>(&root);
  if (sharded == nullptr)
    return absl::InvalidArgumentError("the root module is not a tessera::Sharded<>");
  ASSIGN_OR_RETURN(const UnitChoice choice, ChooseUnits(root, policy, ignored, precision));
  Walk walk(policy, choice, precision);
  if (choice.root_is_unit) {
    walk.AddUnit(sharded, {"", root, NumelOf({&root})}, KeepsFullPrecision(precision, root, ""),
                 /*is_root=*/true);
  }
  RETURN_IF_ERROR(walk.Visit(root, "", choice.root_is_unit ? 0 : kNoUnit, /*kept=*/false));
  RETURN_IF_ERROR(walk.CheckMemory());
  ModuleUnits units = walk.Take();
  units.root = sharded;
  units.tree = root.modules(/*include_self=*/false);
  units.ignored = choice.ignored;
  if (choice.root_is_unit) units.unit_of_module.emplace(sharded, 0);
  units.root_is_unit = choice.root_is_unit;
  if (precision.param_dtype.has_value() && precision.cast_root_forward_inputs)
    units.root_input_dtype = ScalarTypeOf(*precision.param_dtype);
  UseOwnPrecision(&units);
  RETURN_IF_ERROR(ValidateModel(units.model));
  return units;
}

}  // namespace tessera
