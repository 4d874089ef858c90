// The step: vote, decide, update, publish (group_page.h says what survives). Every rank that completes
// the vote sees the same ballots, and comes to the same decision.
//
// Confined to the engine's thread.
#ifndef TESSERA_WORKER_ENGINE_STEP_RUNNER_H_
#define TESSERA_WORKER_ENGINE_STEP_RUNNER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "worker/engine/engine_parts.h"
#include "worker/engine/shard_watch.h"
#include "worker/engine/step_vote.h"

namespace tessera {

class StepRunner {
 public:
  explicit StepRunner(const EngineParts& parts);

  // The trainer gets what all ranks see alike as its result: the step's numbers, or why no rank
  // takes the step. Errors: InvalidArgument  a number is out of range; Aborted and its like
  absl::Status Run(const Op& op);
  // Votes, and says what a step would do, for trainers that update the parameters themselves.
  absl::Status TallyGradients(const Op& op);

 private:
  // The step's numbers as the trainer gave them.
  absl::StatusOr<std::vector<HyperParameters>> GroupsOfStep(const Op& op) const;
  // Both: vote on what was reduced, with the step's numbers.
  absl::StatusOr<Tally> CountVotes(const Op& op, const std::vector<HyperParameters>& groups,
                                   const ClipRule& clip, uint64_t put);
  absl::Status Take(int64_t number, uint64_t put, const Tally& tally, StepNumbers numbers);
  void ForgetGradients();

  EngineContext& context_;
  EarlyUpdates& early_;
  GradientReductions& reductions_;
  UnitGathers& gathers_;
  StateVersions& versions_;
  PutApplier& puts_;
  ShardWatch watch_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_STEP_RUNNER_H_
