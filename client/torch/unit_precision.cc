#include "client/torch/unit_precision.h"

#include <algorithm>
#include <utility>

#include "client/torch/precision_rules.h"
#include "client/torch/summon_full_params.h"

namespace tessera {

UnitPrecisions::UnitPrecisions(Session* session, ModuleUnits* units, bool full_precision_in_eval)
    : session_(session), units_(units), full_precision_in_eval_(full_precision_in_eval) {
  for (size_t unit = 0; unit < units_->modules.size(); ++unit) {
    PlaceParameters(unit);
  }
  for (const CastBuffer& buffer : units_->buffers)
    original_buffers_.push_back(buffer.tensor.scalar_type());
  UseOriginalBuffers(false);
}

UnitPrecisions::~UnitPrecisions() { UseOriginalBuffers(true); }

bool UnitPrecisions::InFullPrecisionEval(int unit) const {
  const auto& modules = units_->modules[unit];
  // Of several modules in a unit one that trains is enough.
  return full_precision_in_eval_ &&
         std::none_of(modules.begin(), modules.end(), [](const ShardedBase* module) {
           return dynamic_cast<const torch::nn::Module&>(*module).is_training();
         });
}

Precision UnitPrecisions::Wanted(int unit) const {
  const bool low = units_->compute_dtypes[unit] != ScalarTypeOf(session_->full_dtype(unit));
  return low && InFullPrecisionEval(unit) ? Precision::kFull : Precision::kCompute;
}

std::optional<torch::ScalarType> UnitPrecisions::InputDType(int unit) const {
  if (unit == ShardedBase::kRootWithoutUnit) {
    const auto& root = dynamic_cast<const torch::nn::Module&>(*units_->root);
    if (full_precision_in_eval_ && !root.is_training()) return std::nullopt;
    return units_->root_input_dtype;
  }
  if (InFullPrecisionEval(unit)) return std::nullopt;
  return units_->input_dtypes[unit];
}

void UnitPrecisions::PlaceParameters(int unit) {
  // The address differs by precision, and stays the same within one.
  for (size_t p = 0; p < units_->parameters[unit].size(); ++p) {
    UseClusterMemory(*session_, unit, p, units_->parameters[unit][p],
                     units_->in_full_precision[unit]);
  }
}

bool UnitPrecisions::UseParameters(int unit, Precision precision) {
  const bool full = precision == Precision::kFull;
  if (units_->in_full_precision[unit] == full) return false;
  units_->in_full_precision[unit] = full;
  PlaceParameters(unit);
  return true;
}

bool UnitPrecisions::UseOriginalBuffers(bool original) {
  if (buffers_original_ == original) return original;
  for (size_t b = 0; b < units_->buffers.size(); ++b) {
    CastBuffer& buffer = units_->buffers[b];
    // set_data keeps the tensor's identity, by which modules and optimizers know it.
    buffer.tensor.set_data(
        buffer.tensor.detach().to(original ? original_buffers_[b] : buffer.dtype));
  }
  return std::exchange(buffers_original_, original);
}

}  // namespace tessera
