// What the executors of a job on one host decide together, in memory that outlives them.
//
// A step is decided when `decided_step` reaches it, which happens once every rank has voted; from
// then on every rank completes it, however often executors die. `applied_step` of a rank says which
// version of its shard is whole: state version applied_step % 2. A rank at decided_step - 1 redoes
// the update from that version and its reduced gradient with the recorded numbers.
//
// All fields are atomics: each is written before the release store that publishes it, and two ranks
// that record the same decision write equal values.
#ifndef TESSERA_WORKER_ENGINE_GROUP_PAGE_H_
#define TESSERA_WORKER_ENGINE_GROUP_PAGE_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "job/job_config.h"
#include "worker/comm/wait_word.h"

namespace tessera {

struct alignas(64) RankRecord {
  WaitWord applied_version;  // Low 32 bits of applied_step; what peers wait on.
  std::atomic<int64_t> applied_step;
};

// HyperParameters whose fields ranks may write at once, all with equal values.
struct SharedHyperParameters {
  std::atomic<double> learning_rate, beta1, beta2, epsilon, weight_decay, momentum;
};

struct Decision {
  std::atomic<double> gradient_scale;  // The clipping coefficient.
  std::atomic<double> gradient_norm;
  SharedHyperParameters groups[kMaxParamGroups];  // As many as the job has.
};

struct GroupPage {
  std::atomic<int64_t> decided_step;
  std::atomic<uint32_t> initialized;  // All ranks hold initial values; step 0 exists.
  Decision decisions[2];              // Of decided_step, at index decided_step % 2.
  RankRecord ranks[kMaxLocalRanks];
};

// What a decision fixes for every rank, and for every repetition of the update.
struct StepNumbers {
  double gradient_scale = 1.0;
  double gradient_norm = 0.0;
  std::vector<HyperParameters> groups;
};

// Records that every rank voted for `step`. The first caller decides; others find it done.
void RecordDecision(GroupPage* group, int64_t step, const StepNumbers& numbers);
// The numbers of the decided `step`. Requires num_groups <= kMaxParamGroups.
StepNumbers LoadDecision(const GroupPage& group, int64_t step, int num_groups);

// Publishes that `rank`'s shard is whole at `step`, and wakes who waits for it.
void PublishApplied(GroupPage* group, int rank, int64_t step);

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_GROUP_PAGE_H_
