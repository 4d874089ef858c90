// The gradient slots of a rank, through which gradients and whole parameters travel, and what is
// known of each unit's gradient since the last step.
//
//   slots.Claim(unit);                     nothing else reads or writes the unit's slot
//   ... slots.ValuesOf(unit, placed) ...
//   slots.Submit(op);                      the executor takes it from the slot, or fills it
//   slots.Await(unit);                     it is through with it
//
// For this folder. One thread at a time. Errors of all that wait: as RankClient's operations.
#ifndef TESSERA_CLIENT_SESSION_GRADIENT_SLOTS_H_
#define TESSERA_CLIENT_SESSION_GRADIENT_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/session/rank_client.h"
#include "client/session/unit_gradient.h"
#include "layout/values.h"

namespace tessera {

class GradientSlots {
 public:
  explicit GradientSlots(RankClient* client) : client_(client) {}  // Not owned.

  void Reset();  // An epoch begins.
  // Of reductions that an earlier trainer submitted in this epoch.
  void TakeCounts();

  UnitGradient& gradient(int unit) { return gradients_[unit]; }
  const UnitGradient& gradient(int unit) const { return gradients_[unit]; }
  Clipping& clipping() { return clipping_; }
  // Whether some unit has a gradient since the last step, reduced or not.
  bool within_step() const;
  absl::Status CheckNotClipped(absl::string_view what) const;

  // Whether the parameter got a gradient since the last step: on this rank until it is reduced, and
  // then on any.
  bool touched(int unit, int parameter) const;
  void SetTouched(int unit, int parameter, bool touched);

  // All gradients are used, or dropped, in a step.
  void Forget();
  // The same, before it: of all units, or of one.
  absl::Status Drop();
  absl::Status Drop(int unit);

  // The other unit whose gradient, started and not reduced, occupies this one's slot.
  std::optional<int> HolderOf(int unit) const;
  // Waits until no operation of the executor uses the unit's slot.
  // Errors: FailedPrecondition  another unit's gradient is there, not reduced.
  absl::Status Await(int unit);
  // Await; the slot is the unit's then.
  absl::Status Take(int unit);
  // As Take, for values that are not a gradient. Errors: also FailedPrecondition  the unit's own
  // gradient is there, not reduced; InvalidArgument  no such unit.
  absl::Status Claim(int unit);
  // An operation that uses the slot of op.unit, which was claimed.
  absl::Status Submit(Op op);
  // Claims, submits and waits: the slot holds what the operation read.
  absl::Status Read(Op op);
  // Claims the slot, lets `fill` write the unit's parameters over zeroes, and submits.
  absl::Status Stage(Op op, absl::FunctionRef<void(int unit, int parameter, Values values)> fill);

  std::byte* Slot(int unit) const;
  std::byte* DeviceSlot(int unit) const;
  // The slot's contents, in the unit's full dtype.
  Values ValuesOf(int unit, int64_t begin_elements, int64_t count) const;
  Values ValuesOf(int unit, const PlacedParameter& placed) const;
  Values Whole(int unit) const;  // With padding.
  Values Shard(int unit) const;  // This rank's.

 private:
  std::byte& TouchedByte(int unit, int parameter) const;
  void ForgetTouched();

  RankClient* const client_;
  std::vector<UnitGradient> gradients_;
  Clipping clipping_;           // Of the step under way.
  std::vector<int> slot_user_;  // The unit that used each gradient slot last; -1: none.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_GRADIENT_SLOTS_H_
