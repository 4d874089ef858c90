// Named seams that tests arm: `FaultPoint("journal.append")` returns OK unless armed.
//
// A point is armed by name with what to do at its n-th hit: return an error, end the process as
// SIGKILL would, stop it until somebody sends SIGCONT, or hold the thread until all points are
// disarmed. All points together can be armed to delay their threads, so that every possible order
// of threads does occur. Unarmed points cost one relaxed atomic load. Thread-safe.
#ifndef TESSERA_BASE_FAULT_POINT_H_
#define TESSERA_BASE_FAULT_POINT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera {

// Passes through the seam `name`.
absl::Status FaultPoint(absl::string_view name);

enum class FaultAction { kFail, kKillProcess, kStopProcess, kHold };

struct Fault {
  FaultAction action = FaultAction::kFail;
  int at_hit = 1;                                               // 1 = the next hit.
  absl::Status status = absl::InternalError("injected fault");  // For kFail.
};

void ArmFaultPoint(absl::string_view name, Fault fault);

// One hit in eight, at any point, sleeps for a time below `longest`: which hits and for how
// long is random, from the seed and the number of the hit in this process.
void ArmDelays(uint64_t seed, absl::Duration longest = absl::Milliseconds(2));
int64_t NumDelays();  // Of this process, ever.
void DisarmAllFaultPoints();

// Arms from a flag's text: "name=kill@3", "name=stop@2", "name=fail@1", "name=hold@1" (for good:
// the setter of the flag ends the process) or, for all points, "*=delay@SEED"; several joined
// by commas.
// Errors: InvalidArgument  the text is not of that form.
absl::Status ArmFaultPointsFromFlag(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_BASE_FAULT_POINT_H_
