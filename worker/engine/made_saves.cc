#include "worker/engine/made_saves.h"

namespace tessera {

void NoteSave(MadeSaves* saves, int64_t step, int number, uint64_t request) {
  if (number >= kMaxMadeSaves) return;
  MadeSaves::Save& save = saves->saves[number];
  save.request.store(request, std::memory_order_relaxed);
  save.step_after.store(step + 1, std::memory_order_release);
}

SavesOfStep SavesOf(const MadeSaves& saves, int64_t step) {
  SavesOfStep of_step = {};
  for (int i = 0; i < kMaxMadeSaves; ++i) {
    // What follows is an older step's.
    if (saves.saves[i].step_after.load(std::memory_order_acquire) != step + 1) break;
    of_step[i] = saves.saves[i].request.load(std::memory_order_relaxed);
  }
  return of_step;
}

int CountSaves(const MadeSaves& saves, int64_t step) {
  const SavesOfStep of_step = SavesOf(saves, step);
  int count = 0;
  while (count < kMaxMadeSaves && of_step[count] != 0) ++count;
  return count;
}

void NoteKnown(KnownSaves* known, int64_t attachment, int64_t step, int number) {
  // The executor may be killed in between: what was known before is then asked for again.
  known->count.store(0, std::memory_order_release);
  known->attachment.store(attachment, std::memory_order_release);
  known->step_after.store(step + 1, std::memory_order_release);
  known->count.store(number + 1, std::memory_order_release);
}

std::optional<int> FindUnknown(const MadeSaves& saves, const KnownSaves& known, int64_t attachment,
                               int64_t step, uint64_t request) {
  const bool is_of_step = known.attachment.load(std::memory_order_acquire) == attachment &&
                          known.step_after.load(std::memory_order_acquire) == step + 1;
  const SavesOfStep of_step = SavesOf(saves, step);
  for (int i = is_of_step ? known.count.load(std::memory_order_acquire) : 0; i < kMaxMadeSaves; ++i)
    if (of_step[i] == request) return i;
  return std::nullopt;
}

}  // namespace tessera
