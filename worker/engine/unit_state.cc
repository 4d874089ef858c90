#include "worker/engine/unit_state.h"

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

absl::string_view Name(UnitEvent event) {
  switch (event) {
    case UnitEvent::kUnshard:
      return "unshard";
    case UnitEvent::kUnshardDone:
      return "unshard-done";
    case UnitEvent::kReshard:
      return "reshard";
    case UnitEvent::kReduce:
      return "reduce";
    case UnitEvent::kInitialize:
      return "initialize";
  }
  return "unknown event";
}

}  // namespace

std::string Name(UnitState state) {
  switch (state) {
    case UnitState::kSharded:
      return "sharded";
    case UnitState::kUnsharding:
      return "unsharding";
    case UnitState::kUnsharded:
      return "unsharded";
  }
  return absl::StrCat("state ", static_cast<uint32_t>(state));
}

absl::StatusOr<UnitState> Transition(UnitState state, UnitEvent event,
                                     absl::string_view unit_name) {
  switch (event) {
    case UnitEvent::kUnshard:
      if (state == UnitState::kSharded) return UnitState::kUnsharding;
      break;
    case UnitEvent::kUnshardDone:
      if (state == UnitState::kUnsharding) return UnitState::kUnsharded;
      break;
    case UnitEvent::kReshard:
      if (state == UnitState::kUnsharded) return UnitState::kSharded;
      break;
    case UnitEvent::kReduce:
    case UnitEvent::kInitialize:
      if (state != UnitState::kUnsharding) return state;
      break;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("unit '", unit_name, "': ", Name(event), " while it is ", Name(state)));
}

}  // namespace tessera
