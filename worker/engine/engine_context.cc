#include "worker/engine/engine_context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

EngineContext::EngineContext(RankEngineOptions given)
    : options(std::move(given)),
      optimizer(*options.config, *options.memory,
                SegmentsOf(*options.layout, *options.config, *options.memory, options.rank),
                options.state, options.parameters, options.kernels),
      interrupt(&options.control->submitted),
      order(options.gate, options.group, options.control),
      trainer(options.rank, options.control),
      states_(options.layout->units.size(), UnitState::kSharded) {}

absl::Status EngineContext::CheckUnit(int unit) const {
  if (unit >= 0 && unit < num_units()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", options.rank.value(), ": no unit ", unit));
}

absl::Status EngineContext::Transit(int unit, UnitEvent event) {
  ASSIGN_OR_RETURN(states_[unit], Transition(states_[unit], event, UnitName(unit)));
  return absl::OkStatus();
}

std::byte* EngineContext::OwnSlot(int unit) const {
  return options.own_gradients +
         MemoryOf(unit).gradient_slot * options.memory->gradient_slot_bytes();
}

std::byte* EngineContext::Touched() const {
  return options.own_gradients + options.memory->touched_offset_bytes();
}

}  // namespace tessera
