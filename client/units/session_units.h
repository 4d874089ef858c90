// The units of a session, as a driver opens, closes and reduces them. What only a training
// framework can do is for its subclass. Thread-compatible.
#ifndef TESSERA_CLIENT_UNITS_SESSION_UNITS_H_
#define TESSERA_CLIENT_UNITS_SESSION_UNITS_H_

#include <optional>

#include "absl/status/status.h"
#include "client/units/unit_host.h"
#include "tessera/session.h"

namespace tessera {

class SessionUnits : public UnitHost {
 public:
  // `session` outlives this.
  explicit SessionUnits(Session* session) : session_(session) {}

  absl::Status Open(int unit, Precision precision) override;
  absl::Status AskFor(int unit, bool for_forward) override;
  absl::Status Close(int unit) override;
  absl::Status Reduce(int unit) override;
  std::optional<int> HolderOfSlot(int unit) override { return session_->HolderOfSlot(unit); }

 protected:
  Session* session() const { return session_; }

 private:
  // In which the unit's next forward reads its parameters.
  virtual Precision WantedPrecision(int unit) const = 0;
  // Its parameters are now to be seen in this precision.
  virtual void UseParameters(int unit, Precision precision) = 0;
  // What devices were given to do so far may read the unit: its window ends after that.
  virtual void FollowUses(int unit) = 0;
  // The session is given what was kept of the unit's gradients.
  virtual absl::Status HandOverGradients(int unit) = 0;

  Session* const session_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_UNITS_SESSION_UNITS_H_
