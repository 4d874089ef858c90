#include "client/torch/summon_full_params.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/session/session_setup.h"
#include "client/torch/cluster_tensor.h"
#include "client/torch/kept_gradient.h"
#include "client/torch/precision_rules.h"
#include "client/torch/torch_device.h"
#include "client/torch/unit_lookup.h"

namespace tessera {

absl::Status CheckShape(const torch::Tensor& tensor, const TensorSpec& spec, absl::string_view of) {
  const bool same_shape = tensor.defined() && tensor.sizes().vec() == spec.shape;
  // A sparse one's elements cannot be copied, which would be noticed in the middle of the write.
  if (same_shape && tensor.layout() == torch::kStrided) return absl::OkStatus();
  if (same_shape) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot write back ", of, " '", spec.name, "': it is not a dense tensor"));
  }
  const std::vector<int64_t> shape =
      tensor.defined() ? tensor.sizes().vec() : std::vector<int64_t>();
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot write back ", of, " '", spec.name, "': its shape became [",
      absl::StrJoin(shape, ", "), "], it was [", absl::StrJoin(spec.shape, ", "), "]"));
}

absl::Status ValidateSummonOptions(const SummonOptions& options, const JobConfig& config) {
  // Other ranks have no copy that they could write back.
  if (options.rank0_only && options.writeback)
    return absl::UnimplementedError("summon: writeback with rank0_only is not supported");
  if (options.offload_to_cpu && options.with_grads)
    return absl::UnimplementedError("summon: with_grads with offload_to_cpu is not supported");
  // The parameters are whole already: offloading would copy them for nothing.
  if (options.offload_to_cpu && config.strategy == Strategy::kNoShard)
    return absl::UnimplementedError(
        "summon: offload_to_cpu is not supported where parameters are not sharded");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> UnitsToSummon(const ModuleUnits& units,
                                               const torch::nn::Module& root,
                                               const SummonOptions& options) {
  std::vector<int> found =
      UnitsBelow(units, options.module == nullptr ? root : *options.module, options.recurse);
  if (!found.empty()) return found;
  return absl::InvalidArgumentError(options.recurse
                                        ? "summon: no unit of this model is at or below the module"
                                        : "summon: the module is not a unit of this model");
}

torch::Tensor TensorOf(ConstValues values, const std::vector<int64_t>& shape) {
  torch::Tensor tensor = torch::empty(shape, ScalarTypeOf(values.dtype()));
  if (!values.empty()) memcpy(tensor.data_ptr(), values.data(), values.size_bytes());
  return tensor;
}

void CopyValues(const torch::Tensor& tensor, Values values) {
  if (values.empty()) return;
  // CPU and contiguous, so that one memcpy is enough.
  const torch::Tensor source =
      tensor.detach().to(torch::kCPU, ScalarTypeOf(values.dtype())).contiguous();
  memcpy(values.data(), source.data_ptr(), values.size_bytes());
}

void ReplaceMemory(torch::Tensor& tensor, const torch::Tensor& memory) {
  if (tensor.is_meta() == memory.is_meta()) return tensor.set_data(memory);
  // Both are plain dense tensors; what set_data checks is the device alone. No graph has them yet.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(memory.getIntrusivePtr());
}

const void* ClusterMemory(const Session& session, int unit, int parameter, bool full_precision) {
  if (full_precision) return session.full_parameter(unit, parameter);
  return session.parameter(unit, parameter);
}

void UseClusterMemory(const Session& session, int unit, int parameter, torch::Tensor& tensor,
                      bool full_precision) {
  const UnitLayout& layout = session.layout().units[unit];
  const auto dtype =
      ScalarTypeOf(full_precision ? layout.full_dtype()
                                  : layout.compute_dtype.value_or(session.config().compute_dtype));
  void* address = const_cast<void*>(ClusterMemory(session, unit, parameter, full_precision));
  const TensorSpec& spec = layout.flat.parameters()[parameter].spec;
  const torch::TensorOptions options =
      torch::TensorOptions().dtype(dtype).device(DeviceOf(session));
  ReplaceMemory(tensor, ClusterTensor(address, spec.shape, options));
}

absl::Status FullParameters::Open() {
  if (options_.with_grads) RETURN_IF_ERROR(CheckReducedAlike());
  std::vector<std::pair<torch::Tensor*, torch::Tensor>> values, gradients;
  for (const int unit : which_) {
    const std::vector<PlacedParameter>& placed = session_->layout().units[unit].flat.parameters();
    std::vector<torch::Tensor>& parameters = units_->parameters[unit];
    const auto read = [&](auto* into) {
      return [&, into](int p, ConstValues whole) {
        if (HasCopy()) into->emplace_back(&parameters[p], TensorOf(whole, placed[p].spec.shape));
      };
    };
    RETURN_IF_ERROR(session_->ReadParameters(unit, read(&values)));
    if (options_.with_grads) RETURN_IF_ERROR(session_->ReadGradients(unit, read(&gradients)));
  }
  // All reads first: an error until here has changed no tensor.
  const torch::Device device = options_.offload_to_cpu ? torch::kCPU : DeviceOf(*session_);
  for (auto& [parameter, copy] : values) parameter->set_data(copy.to(device));
  if (options_.with_grads) TakeOutGradients();
  for (auto& [parameter, copy] : gradients) parameter->mutable_grad() = copy.to(device);
  open_ = true;
  return absl::OkStatus();
}

void FullParameters::TakeOutGradients() {
  for (const int unit : which_) {
    for (torch::Tensor& parameter : units_->parameters[unit]) {
      if (!IsKeptGradient(parameter.grad())) continue;
      taken_out_.emplace_back(parameter, parameter.grad());
      parameter.mutable_grad().reset();
    }
  }
}

absl::Status FullParameters::ReadAgain() {
  for (const int unit : which_)
    RETURN_IF_ERROR(session_->ReadParameters(unit, [](int, ConstValues) {}));
  return absl::OkStatus();
}

absl::Status FullParameters::Check() const {
  for (const int unit : which_) {
    const std::vector<PlacedParameter>& placed = session_->layout().units[unit].flat.parameters();
    for (size_t p = 0; p < placed.size(); ++p) {
      const torch::Tensor& tensor = units_->parameters[unit][p];
      RETURN_IF_ERROR(CheckShape(tensor, placed[p].spec, "parameter"));
      if (options_.with_grads && tensor.grad().defined())
        RETURN_IF_ERROR(CheckShape(tensor.grad(), placed[p].spec, "the gradient of"));
    }
  }
  return absl::OkStatus();
}

absl::Status FullParameters::WriteBack() {
  AwaitStreamOf(DeviceOf(*session_));  // The parameters are written.
  RETURN_IF_ERROR(session_->WriteParameters(which_, [this](int unit, int p, Values values) {
    CopyValues(units_->parameters[unit][p], values);
  }));
  return options_.with_grads ? WriteGradients() : absl::OkStatus();
}

absl::StatusOr<std::vector<char>> FullParameters::Exchange(
    const std::function<bool(int unit)>& own) const {
  const size_t num_ranks = session_->config().world_size;
  std::vector<char> said, all(which_.size() * num_ranks), by_unit(all.size());
  for (const int unit : which_) said.push_back(own(unit) ? 1 : 0);
  RETURN_IF_ERROR(SessionSetup(session_).AllGather(said, all.data()));
  // Gathered rank by rank, but returned unit by unit.
  for (size_t i = 0; i < by_unit.size(); ++i)
    by_unit[i] = all[i % num_ranks * which_.size() + i / num_ranks];
  return by_unit;
}

absl::Status FullParameters::CheckReducedAlike() const {
  ASSIGN_OR_RETURN(const std::vector<char> all,
                   Exchange([this](int unit) { return session_->reduced(unit); }));
  // A rank would wait in a read that the others do not make.
  const size_t num_ranks = session_->config().world_size;
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t unit = i / num_ranks;
    if (all[i] == all[unit * num_ranks]) continue;
    return SessionSetup(session_).ErrorOfAll(absl::FailedPreconditionError(absl::StrCat(
        "summon with_grads: of ranks 0 and ", i % num_ranks, " only one has reduced unit '",
        session_->layout().units[which_[unit]].flat.unit_name(), "'")));
  }
  return absl::OkStatus();
}

absl::Status FullParameters::WriteGradients() {
  ASSIGN_OR_RETURN(const std::vector<char> all, Exchange([this](int unit) {
                     bool any = session_->reduced(unit);
                     for (const torch::Tensor& tensor : units_->parameters[unit])
                       any |= tensor.grad().defined();
                     return any;
                   }));
  const auto num_ranks = static_cast<ptrdiff_t>(session_->config().world_size);
  for (size_t i = 0; i < which_.size(); ++i) {
    const auto first = all.begin() + static_cast<ptrdiff_t>(i) * num_ranks;
    // If one rank has a gradient of the unit, all write it, because writing is collective.
    if (std::count(first, first + num_ranks, 1) > 0) RETURN_IF_ERROR(WriteGradientsOf(which_[i]));
  }
  return absl::OkStatus();
}

absl::Status FullParameters::WriteGradientsOf(int unit) {
  return session_->WriteGradients(unit, [&](int p, bool, Values values) {
    const torch::Tensor& gradient = units_->parameters[unit][p].grad();
    if (gradient.defined()) {
      CopyValues(gradient, values);
    } else {
      // An undefined gradient counts as none, but the slot may have old values.
      memset(values.data(), 0, values.size_bytes());
    }
    return gradient.defined();
  });
}

void FullParameters::Close() {
  if (!std::exchange(open_, false)) return;
  for (const int unit : which_) {
    for (size_t p = 0; p < units_->parameters[unit].size(); ++p) {
      torch::Tensor& tensor = units_->parameters[unit][p];
      if (!IsKeptGradient(tensor.grad())) tensor.mutable_grad().reset();
      UseClusterMemory(*session_, unit, p, tensor, units_->in_full_precision[unit]);
    }
  }
  // After the reset above, which must not drop them.
  for (auto& [parameter, gradient] : std::exchange(taken_out_, {}))
    parameter.mutable_grad() = gradient;
}

}  // namespace tessera
