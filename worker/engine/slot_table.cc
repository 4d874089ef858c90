#include "worker/engine/slot_table.h"

#include <utility>

namespace tessera {

SlotTable::SlotTable(const ParameterPlan* plan)
    : plan_(plan), slots_(plan == nullptr ? 0 : plan->num_slots()) {}

int SlotTable::OtherIn(int unit) const {
  if (!HasSlot(unit)) return -1;
  return Of(unit).unit == unit ? -1 : Of(unit).unit;
}

bool SlotTable::IsOpen(int unit) const {
  return HasSlot(unit) && Of(unit).unit == unit && Of(unit).open;
}

bool SlotTable::MayGatherAhead(int unit) const {
  // The slot is another unit's, gathered or open.
  if (OtherIn(unit) >= 0) return false;
  return !IsOpen(unit) || !Of(unit).full_precision;
}

void SlotTable::GatherAhead(int unit) {
  if (!HasSlot(unit)) return;
  Of(unit).unit = unit;
  Of(unit).ahead = true;
}

void SlotTable::Open(int unit, bool full_precision) {
  if (!HasSlot(unit)) return;
  Slot& slot = Of(unit);
  slot.unit = unit;
  slot.open = true;
  slot.full_precision = full_precision;
  slot.ahead = false;
}

void SlotTable::Close(int unit, uint32_t read_until) {
  if (!IsOpen(unit)) return;
  Slot& slot = Of(unit);
  slot.open = false;
  slot.read_until = read_until;
  FreeIfUnused(&slot);
}

bool SlotTable::Drop(int unit) {
  if (!HasSlot(unit) || Of(unit).unit != unit || !Of(unit).ahead) return false;
  Of(unit).ahead = false;
  FreeIfUnused(&Of(unit));
  return true;
}

void SlotTable::Forget() {
  for (Slot& slot : slots_) {
    slot.ahead = false;
    slot.read_until = 0;
    FreeIfUnused(&slot);
  }
}

uint32_t SlotTable::TakeReadUntil(int unit) {
  // The unit's own readers need no wait: it is still what is in the slot.
  if (!HasSlot(unit) || Of(unit).unit == unit) return 0;
  // Once: after that wait nobody reads the earlier unit in the slot any more.
  return std::exchange(Of(unit).read_until, 0);
}

void SlotTable::FreeIfUnused(Slot* slot) {
  if (!slot->open && !slot->ahead) slot->unit = -1;
}

}  // namespace tessera
