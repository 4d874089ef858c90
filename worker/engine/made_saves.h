// Which saves all ranks have made of the decided step, in memory that outlives executors.
//
// The last outcome of a save is agreed on like any other, so an epoch can end when some trainers
// have it and others do not. Those that have it go on, or end; the others ask again, and so does
// the successor of a trainer that died. Each rank notes a save before it tells its trainer, so who
// asks for one that is noted and that its trainer does not know of gets its outcome, and waits for
// nobody.
//
//   save 1 of step 7: noted, known ── rank 0's trainer asks again: made again, by all ranks
//                   : noted        ── rank 1's trainer asks again: it is made
//
// Ranks note the same saves in the same order, and may do so at once. All is zero at first.
#ifndef TESSERA_WORKER_ENGINE_MADE_SAVES_H_
#define TESSERA_WORKER_ENGINE_MADE_SAVES_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

namespace tessera {

// Of one step. More than these are not noted, and are made again.
inline constexpr int kMaxMadeSaves = 8;

struct MadeSaves {
  struct Save {
    std::atomic<uint64_t> request;
    std::atomic<int64_t> step_after;  // The step + 1; 0: none. Written last.
  };
  Save saves[kMaxMadeSaves];
};

// How many of a step a rank's trainer knows of.
struct KnownSaves {
  std::atomic<int64_t> attachment;  // Which trainer, as RankRecord has it.
  std::atomic<int64_t> step_after;
  std::atomic<int32_t> count;  // Written last, and set to 0 first.
};

// By the order in which they were made; as other hosts take them over.
using SavesOfStep = std::array<uint64_t, kMaxMadeSaves>;  // 0: none.

// `request` is not 0, and identifies what is saved and where among those of a step. Ignored beyond
// the last number; numbers count from 0 in each step.
void NoteSave(MadeSaves* saves, int64_t step, int number, uint64_t request);
int CountSaves(const MadeSaves& saves, int64_t step);
SavesOfStep SavesOf(const MadeSaves& saves, int64_t step);

// The rank's trainer has the outcome of save `number`, and thus of all before it.
void NoteKnown(KnownSaves* known, int64_t attachment, int64_t step, int number);
// The number of the first such save of the step of which this trainer does not know.
std::optional<int> FindUnknown(const MadeSaves& saves, const KnownSaves& known, int64_t attachment,
                               int64_t step, uint64_t request);

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_MADE_SAVES_H_
