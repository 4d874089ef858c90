// Which unit has each slot of parameters, by the windows of this trainer (see
// shm/parameter_plan.h). Pure; thread-compatible.
#ifndef TESSERA_CLIENT_SESSION_SLOT_WINDOWS_H_
#define TESSERA_CLIENT_SESSION_SLOT_WINDOWS_H_

#include <vector>

#include "shm/parameter_plan.h"

namespace tessera {

class SlotWindows {
 public:
  // No window is open.
  void Reset(const ParameterPlan& plan) {
    slot_of_.clear();
    for (const ParameterPlan::Unit& unit : plan.units()) slot_of_.push_back(unit.slot);
    unit_in_.assign(plan.num_slots(), -1);
  }
  bool HasSlot(int unit) const { return slot_of_[unit] >= 0; }
  // The other unit whose window has the slot of this one; -1: none.
  int OtherIn(int unit) const {
    if (!HasSlot(unit)) return -1;
    const int in = unit_in_[slot_of_[unit]];
    return in == unit ? -1 : in;
  }
  void Open(int unit) {
    if (HasSlot(unit)) unit_in_[slot_of_[unit]] = unit;
  }
  void Close(int unit) {
    if (HasSlot(unit)) unit_in_[slot_of_[unit]] = -1;
  }

 private:
  std::vector<int> slot_of_;  // By unit.
  std::vector<int> unit_in_;  // By slot.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_SLOT_WINDOWS_H_
