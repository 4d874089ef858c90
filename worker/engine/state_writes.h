// What trainers set themselves: initial values, parameters, moments and gradients, unit by unit by
// way of their gradient slots; and what a load read. A write becomes a version once all ranks voted.
//
//   Write(unit) ... ──► staged ── FinishWrite, or a load ──► Commit: vote, decide, publish
//
// Confined to the engine's thread.
#ifndef TESSERA_WORKER_ENGINE_STATE_WRITES_H_
#define TESSERA_WORKER_ENGINE_STATE_WRITES_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "worker/engine/engine_parts.h"

namespace tessera {

class StateWrites {
 public:
  explicit StateWrites(const EngineParts& parts);

  // --- The job's first values ---
  absl::Status Initialize(int unit);
  // All ranks have theirs: step 0, or where a load says that training stands.
  absl::Status FinishInitialize();
  // The first values are a load's, which set moments too.
  void SetInitialProgress(const TrainingProgress& loaded);

  // --- Writes ---
  absl::Status Write(const Op& op);
  absl::Status WriteGradient(int unit);
  absl::Status FinishWrite(const Op& op);
  // What is staged of all units becomes a version of the state; with `loaded`, moments too. The
  // trainer's result says why not. `number` is the operation's in the flight record.
  absl::Status Commit(OpKind kind, int64_t number, const StagedArrays& written,
                      const std::optional<TrainingProgress>& loaded);
  // A load is not to be: what it published is taken back.
  absl::Status TakeBackPublished();

 private:
  // A write that has all parameters and moments of a job without values.
  absl::Status FinishFirstWrite(int64_t number, const StagedArrays& written,
                                const std::optional<TrainingProgress>& loaded);
  // Parameters, and with `loaded` moments, that were not set stay as they are.
  void StageTheRest(const StagedArrays& written, const std::optional<TrainingProgress>& loaded);
  absl::Status Refuse(int64_t number, uint64_t put, const absl::Status& why);
  // The decided version becomes whole.
  absl::Status Finish(int64_t next, const StagedArrays& written, bool is_step);

  EngineContext& context_;
  EarlyUpdates& early_;
  GradientReductions& reductions_;
  UnitGathers& gathers_;
  StateVersions& versions_;
  PutApplier& puts_;
  // With which the values under way will be the job's first.
  TrainingProgress initial_progress_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_STATE_WRITES_H_
