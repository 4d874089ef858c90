#include "client/torch/replaced_parameters.h"

#include <map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/kept_gradient.h"
#include "client/torch/summon_full_params.h"
#include "client/torch/torch_device.h"

namespace tessera {
namespace {

struct Replacement {
  int unit;
  int parameter;
  torch::Tensor tensor;  // Registered now.
};

// What is registered at each site, with one listing of a module for all its parameters.
class Registered {
 public:
  torch::Tensor At(const ParameterSite& site) {
    if (module_ != site.module) {
      // Listings copy all names, so one serves all parameters of a module.
      module_ = site.module;
      parameters_ = module_->named_parameters(/*recurse=*/false);
    }
    const torch::Tensor* found = parameters_.find(site.key);
    return found == nullptr ? torch::Tensor() : *found;
  }

 private:
  torch::nn::Module* module_ = nullptr;
  torch::OrderedDict<std::string, torch::Tensor> parameters_;
};

bool InPlace(const Session& session, const ModuleUnits& units, int unit, int parameter,
             const torch::Tensor& tensor) {
  return tensor.defined() &&
         (tensor.numel() == 0 || tensor.data_ptr() == ClusterMemory(session, unit, parameter,
                                                                    units.in_full_precision[unit]));
}

std::vector<Replacement> FindReplaced(const Session& session, const ModuleUnits& units,
                                      bool first_only) {
  std::vector<Replacement> found;
  Registered registered;
  for (size_t unit = 0; unit < units.parameters.size(); ++unit) {
    for (size_t p = 0; p < units.parameters[unit].size(); ++p) {
      torch::Tensor tensor = registered.At(units.sites[unit][p]);
      const TensorSpec& spec = session.layout().units[unit].flat.parameters()[p].spec;
      // Equal memory and shape: no change. Empty tensors have no address to compare.
      if (InPlace(session, units, unit, p, tensor) && tensor.sizes().vec() == spec.shape) continue;
      found.push_back({static_cast<int>(unit), static_cast<int>(p), std::move(tensor)});
      if (first_only) return found;
    }
  }
  return found;
}

const TensorSpec& SpecOf(const Session& session, const Replacement& replacement) {
  return session.layout().units[replacement.unit].flat.parameters()[replacement.parameter].spec;
}

absl::Status Check(const Session& session, const Replacement& replacement) {
  const TensorSpec& spec = SpecOf(session, replacement);
  RETURN_IF_ERROR(CheckShape(replacement.tensor, spec, "parameter"));
  if (replacement.tensor.requires_grad() == spec.requires_grad) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot write back parameter '", spec.name, "': it ",
                   spec.requires_grad ? "needed a gradient" : "needed no gradient",
                   ", and its replacement does not match"));
}

// By unit and parameter: whole values, where some parameter of the unit is replaced.
using NewTensors = std::map<std::pair<int, int>, torch::Tensor>;

absl::StatusOr<NewTensors> NewValues(Session* session, const std::vector<Replacement>& replaced,
                                     const std::vector<int>& units) {
  NewTensors values;
  for (const int unit : units) {
    const std::vector<PlacedParameter>& placed = session->layout().units[unit].flat.parameters();
    RETURN_IF_ERROR(session->ReadParameters(unit, [&](int p, ConstValues whole) {
      values[{unit, p}] = TensorOf(whole, placed[p].spec.shape);
    }));
  }
  for (const Replacement& r : replaced) values[{r.unit, r.parameter}] = r.tensor;
  return values;
}

// Looks through a tree for parameters that no unit has.
class AddedParameters {
 public:
  AddedParameters(const ModuleUnits& units, const IgnoredStates& ignored) : known_(units.ignored) {
    for (const auto& parameters : units.parameters) {
      for (const torch::Tensor& parameter : parameters)
        known_.insert(parameter.unsafeGetTensorImpl());
    }
    for (const auto& module : ignored.modules) skipped_.insert(module.get());
  }
  // The first one's name; empty: there is none.
  std::string FirstBelow(const torch::nn::Module& module, const std::string& prefix) const {
    if (skipped_.count(&module) > 0) return "";
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      const torch::Tensor& tensor = item.value();
      // What needs no gradient is not trained by plain code either.
      if (!tensor.defined() || !tensor.requires_grad()) continue;
      if (known_.count(tensor.unsafeGetTensorImpl()) == 0) return absl::StrCat(prefix, item.key());
    }
    for (const auto& child : module.named_children()) {
      std::string found = FirstBelow(*child.value(), absl::StrCat(prefix, child.key(), "."));
      if (!found.empty()) return found;
    }
    return "";
  }

 private:
  std::unordered_set<const c10::TensorImpl*> known_;
  std::unordered_set<const torch::nn::Module*> skipped_;
};

}  // namespace

absl::Status CheckNoneAdded(const torch::nn::Module& root, const ModuleUnits& units,
                            const IgnoredStates& ignored) {
  const std::string added = AddedParameters(units, ignored).FirstBelow(root, "");
  if (added.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "parameter '", added,
      "' was registered after the model was attached, so the job does not have it and would not "
      "train it: register it before Attach, or name it in AttachOptions::ignored"));
}

std::string FirstReplaced(const Session& session, const ModuleUnits& units) {
  const std::vector<Replacement> found = FindReplaced(session, units, /*first_only=*/true);
  return found.empty() ? "" : SpecOf(session, found[0]).name;
}

absl::Status TakeReplacedParameters(Session* session, ModuleUnits* units,
                                    std::vector<int>* changed) {
  const std::vector<Replacement> replaced = FindReplaced(*session, *units, /*first_only=*/false);
  if (replaced.empty()) return absl::OkStatus();
  // The host reads below what a GPU may still be writing.
  AwaitStreamOf(DeviceOf(*session));  // The parameters are written.
  std::vector<int> which;
  for (const Replacement& replacement : replaced) {
    RETURN_IF_ERROR(Check(*session, replacement));
    // In order of the units, so comparing with the last is enough.
    if (which.empty() || which.back() != replacement.unit) which.push_back(replacement.unit);
  }
  // Others of the unit keep their values: units are written as a whole (docs/adr/0023).
  ASSIGN_OR_RETURN(const NewTensors values, NewValues(session, replaced, which));
  RETURN_IF_ERROR(session->WriteParameters(which, [&](int unit, int p, Values into) {
    CopyValues(values.at({unit, p}), into);
  }));
  for (const Replacement& r : replaced) {
    torch::Tensor& known = units->parameters[r.unit][r.parameter];
    const bool same = known.is_same(r.tensor);
    // Its memory is the job's, and belongs to the new tensor from now on.
    if (!same) known.set_data(torch::empty({0}, known.options()));
    known = r.tensor;
    UseClusterMemory(*session, r.unit, r.parameter, known, units->in_full_precision[r.unit]);
    if (changed->empty() || changed->back() != r.unit) changed->push_back(r.unit);
  }
  return absl::OkStatus();
}

absl::Status TakeReplacedGradients(Session* session, const ModuleUnits& units,
                                   KeptGradients* kept) {
  for (size_t unit = 0; unit < units.parameters.size(); ++unit) {
    bool any = false;
    for (size_t p = 0; p < units.parameters[unit].size(); ++p) {
      const torch::Tensor& parameter = units.parameters[unit][p];
      if (!HasOwnGradient(parameter)) continue;
      any = true;
      RETURN_IF_ERROR(CheckShape(parameter.grad(),
                                 session->layout().units[unit].flat.parameters()[p].spec,
                                 "the gradient of"));
    }
    if (!any) continue;
    RETURN_IF_ERROR(session->WriteGradients(unit, [&](int p, bool has, Values values) {
      const torch::Tensor& parameter = units.parameters[unit][p];
      // Without one of its own the parameter keeps the job's, if there is one.
      if (!HasOwnGradient(parameter)) return has;
      CopyValues(parameter.grad(), values);
      return true;
    }));
    // After the write: until then the user's gradient is the only copy.
    for (size_t p = 0; p < units.parameters[unit].size(); ++p) {
      if (HasOwnGradient(units.parameters[unit][p])) kept->Put(unit, p);
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
