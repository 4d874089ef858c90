// Which unit has each slot of parameters (shm/parameter_plan.h) in an epoch.
//
//   free ──GatherAhead──► ahead ──Open──► open ──Close──► free
//     └──────────────Open──────────────────▲
//
// A unit that is open may be gathered ahead for its next window, and keeps the slot until that is
// over, too. Decisions depend on what was called alone, so ranks that call alike decide alike.
// Without slots everything is free. Pure logic; thread-compatible.
#ifndef TESSERA_WORKER_ENGINE_SLOT_TABLE_H_
#define TESSERA_WORKER_ENGINE_SLOT_TABLE_H_

#include <cstdint>
#include <vector>

#include "shm/parameter_plan.h"

namespace tessera {

class SlotTable {
 public:
  // `plan`: null: no unit has a slot. Outlives this.
  explicit SlotTable(const ParameterPlan* plan);

  bool HasSlot(int unit) const { return plan_ != nullptr && plan_->slot(unit) >= 0; }
  // The other unit that has its slot; -1: none.
  int OtherIn(int unit) const;
  bool IsOpen(int unit) const;
  // Whether its slot may be filled before it is asked for: nobody has it, or its own window in the
  // compute dtype.
  bool MayGatherAhead(int unit) const;

  // Of a unit whose slot no other has.
  void GatherAhead(int unit);
  void Open(int unit, bool full_precision);
  // `read_until`: 1 + the event after which its trainer's GPU reads the slot no more; 0: now.
  void Close(int unit, uint32_t read_until);
  // What was gathered ahead is not wanted. Whether there was anything.
  bool Drop(int unit);
  // The parameters are about to change: nothing that was gathered ahead is wanted, and nothing that
  // trainers have launched reads closed windows any more.
  void Forget();

  // What to wait for before the slot is filled for this unit; 0: nothing. It is told once, and not
  // while the unit has the slot already.
  uint32_t TakeReadUntil(int unit);

 private:
  struct Slot {
    int unit = -1;
    bool open = false, full_precision = false, ahead = false;
    uint32_t read_until = 0;
  };
  Slot& Of(int unit) { return slots_[plan_->slot(unit)]; }
  const Slot& Of(int unit) const { return slots_[plan_->slot(unit)]; }
  static void FreeIfUnused(Slot* slot);

  const ParameterPlan* const plan_;
  std::vector<Slot> slots_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_SLOT_TABLE_H_
