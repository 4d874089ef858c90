// The life of a unit on one rank: one enum, one transition function.
//
//             unshard            unshard-done
//   kSharded ─────────► kUnsharding ─────────► kUnsharded ──┐
//      ▲                                          │         │ reduce, initialize: stays
//      └────────────────── reshard ◄──────────────┘◄────────┘
//
// Reducing and initialising read the gradient slot, not the parameters, so they are legal in every
// state but kUnsharding. The states are those that ControlPage shows to the trainer.
#ifndef TESSERA_WORKER_ENGINE_UNIT_STATE_H_
#define TESSERA_WORKER_ENGINE_UNIT_STATE_H_

#include <string>

#include "absl/status/statusor.h"
#include "shm/control_page.h"

namespace tessera {

enum class UnitEvent { kUnshard, kUnshardDone, kReshard, kReduce, kInitialize };

std::string Name(UnitState state);

// The state after `event`.
// Errors: FailedPrecondition  naming unit, event and state, when the event is not legal there.
absl::StatusOr<UnitState> Transition(UnitState state, UnitEvent event, absl::string_view unit_name);

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_UNIT_STATE_H_
