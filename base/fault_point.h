// Named seams that tests arm: `FaultPoint("journal.append")` returns OK unless armed.
//
// A point is armed by name with what to do at its n-th hit: return an error, or end the process
// as SIGKILL would. Unarmed points cost one relaxed atomic load. Thread-safe.
#ifndef TESSERA_BASE_FAULT_POINT_H_
#define TESSERA_BASE_FAULT_POINT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Passes through the seam `name`.
absl::Status FaultPoint(absl::string_view name);

enum class FaultAction { kFail, kKillProcess };

struct Fault {
  FaultAction action = FaultAction::kFail;
  int at_hit = 1;                                               // 1 = the next hit.
  absl::Status status = absl::InternalError("injected fault");  // For kFail.
};

void ArmFaultPoint(absl::string_view name, Fault fault);
void DisarmAllFaultPoints();

// Arms from a flag's text: "name=kill@3" or "name=fail@1", several joined by commas.
// Errors: InvalidArgument  the text is not of that form.
absl::Status ArmFaultPointsFromFlag(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_BASE_FAULT_POINT_H_
