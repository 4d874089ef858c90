#include "client/units/session_units.h"

#include <optional>

#include "base/status_macros.h"
#include "tessera/device_gradients.h"

namespace tessera {

absl::Status SessionUnits::Open(int unit, Precision precision) {
  // The same memory cannot show two precisions.
  if (session_->precision(unit) != precision) RETURN_IF_ERROR(Close(unit));
  // A unit that was asked for because the last step used it, and is not used now, makes room.
  const std::optional<int> other = DeviceGradients(session_).OtherInSlot(unit);
  if (other.has_value() && !session_->unsharded(*other)) RETURN_IF_ERROR(Close(*other));
  if (!session_->unsharded(unit)) RETURN_IF_ERROR(session_->Unshard(unit, precision));
  UseParameters(unit, precision);
  return absl::OkStatus();
}

absl::Status SessionUnits::AskFor(int unit, bool for_forward) {
  // Asking ahead is never an error. The unit is opened when it is used.
  if (!session_->closed(unit) || DeviceGradients(session_).OtherInSlot(unit).has_value())
    return absl::OkStatus();
  return session_->UnshardAsync(unit,
                                for_forward ? WantedPrecision(unit) : session_->precision(unit));
}

absl::Status SessionUnits::Close(int unit) {
  if (session_->closed(unit)) return absl::OkStatus();
  // Before the pages close: what still uses them is waited for, or known to the executor.
  FollowUses(unit);
  return session_->Reshard(unit);
}

absl::Status SessionUnits::Reduce(int unit) {
  RETURN_IF_ERROR(HandOverGradients(unit));
  return session_->has_gradient(unit) ? session_->Reduce(unit) : absl::OkStatus();
}

}  // namespace tessera
