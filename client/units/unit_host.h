// What a UnitDriver has done to the units of a model.
#ifndef TESSERA_CLIENT_UNITS_UNIT_HOST_H_
#define TESSERA_CLIENT_UNITS_UNIT_HOST_H_

#include <optional>

#include "absl/status/status.h"
#include "tessera/session_options.h"

namespace tessera {

class UnitHost {
 public:
  virtual ~UnitHost() = default;
  // Returns when its parameters are readable in this precision.
  virtual absl::Status Open(int unit, Precision precision) = 0;
  // It is going to be opened, as its next forward wants it or as it was last. May do nothing.
  virtual absl::Status AskFor(int unit, bool for_forward) = 0;
  // If it is open.
  virtual absl::Status Close(int unit) = 0;
  // Reduces what was added to its gradient since the last time, if anything was.
  virtual absl::Status Reduce(int unit) = 0;
  // The other unit whose gradient, not reduced yet, has the memory of this one's.
  virtual std::optional<int> HolderOfSlot(int unit) = 0;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_UNITS_UNIT_HOST_H_
