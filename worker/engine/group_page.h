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

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "job/job_config.h"
#include "job/training_progress.h"
#include "shm/wait_word.h"
#include "worker/engine/made_saves.h"
#include "worker/engine/state_hold.h"
#include "worker/engine/window_count.h"

namespace tessera {

struct alignas(64) RankRecord {
  // Low 32 bits of applied_step, or of the step before while the published parameters belong to no
  // step; peers wait on this.
  WaitWord applied_version;
  std::atomic<int64_t> applied_step;
  // 1: some update had momentum, so one without it must carry the buffers over.
  std::atomic<uint32_t> has_momentum;
  // 1: the rank's GPU memory was set to zero, as host memory is from the start.
  std::atomic<uint32_t> device_cleared;
  // The worker's own, for its next daemon. 1: the rank must be given the job's values, which other
  // ranks have; and which trainer was attached last, 0: none.
  std::atomic<uint32_t> lacks_values;
  std::atomic<uint32_t> had_foreign_trainer;  // 1: some trainer was another user's; stays so.
  std::atomic<int64_t> attachment;
  std::atomic<int64_t> changed_shard;  // What ShardWatch found last; 0: nothing.
  StateHold hold;                      // Of one of the rank's versions, by the keeper.
  KnownSaves known_saves;
};

// HyperParameters whose fields ranks may write at once, all with equal values.
struct SharedHyperParameters {
  std::atomic<double> learning_rate, beta1, beta2, epsilon, weight_decay, momentum;
};

struct Decision {
  std::atomic<double> gradient_scale;  // The clipping coefficient.
  std::atomic<double> gradient_norm;
  SharedHyperParameters groups[kMaxParamGroups];  // As many as the job has.
  std::atomic<uint32_t> is_write;                 // 1: sets parameters instead of updating them.
  std::atomic<uint32_t> is_trainers_step;         // 1: to what trainers' own optimizers made.
  std::atomic<uint32_t> sets_moments;  // 1, with is_write: moments and update counts as well.
  std::atomic<int64_t> writes;         // Of the trainers, among all steps up to this one.
  std::atomic<int64_t> trained_step;   // Its number as trainers count: a load sets it.
  std::atomic<uint64_t> put;           // Whose values a write sets; 0: trainers'.
};

inline constexpr uint32_t kGroupPageVersion = 3;

struct GroupPage {
  uint32_t version;  // Written once, before anybody else has the page.
  std::atomic<int64_t> decided_step;
  std::atomic<uint32_t> initialized;  // All ranks hold initial values; step 0 exists.
  // The worker's own, likewise. 1: an epoch has started in this memory; and which was prepared
  // last.
  std::atomic<uint32_t> has_begun;
  std::atomic<int64_t> prepared_epoch;
  Decision decisions[2];  // Of decided_step, at index decided_step % 2.
  RankRecord ranks[kMaxLocalRanks];
  WindowWord windows[kMaxUnits];  // On what other hosts' slices were gathered into.
  // Of the last put that was applied: see RememberPut. 0: there was none.
  std::atomic<uint64_t> put;
  std::atomic<int64_t> put_step;
  std::atomic<int64_t> put_trained_step;
  // Random, of this memory alone: see IdOf. 0: not chosen yet.
  std::atomic<uint64_t> id[2];
  MadeSaves saves;
};

// Identifies this memory as long as it lasts; no other memory that a job ever had has this id. All
// executors of one host use the same one, and so do their successors.
std::array<uint64_t, 2> IdOf(GroupPage* group);

// How many updates each parameter of the job has had: a parameter that no rank gave a gradient in a
// step is left as it is. Part of the decision, so kept for the last two decided steps, in memory
// that is not owned: two arrays of num_parameters, zeroes for a new job.
class UpdateCounts {
 public:
  UpdateCounts() = default;
  UpdateCounts(std::byte* base, int num_parameters)
      : counts_(reinterpret_cast<std::atomic<uint32_t>*>(base)), num_parameters_(num_parameters) {}
  static int64_t SizeBytes(int num_parameters) {
    return int64_t{2} * num_parameters * static_cast<int64_t>(sizeof(std::atomic<uint32_t>));
  }

  int num_parameters() const { return num_parameters_; }
  // As a load has them, by parameter.
  void Set(int64_t step, const std::vector<int64_t>& counts) const;
  // All that there is, of two steps; index < 2 * num_parameters.
  std::atomic<uint32_t>& Word(int index) const { return counts_[index]; }

  // Writes those of `step`, from those of the step before it. touched: by parameter.
  void Record(int64_t step, const std::vector<bool>& touched) const;
  // By parameter: which of its updates is made in `step`, 1 is the first; 0: none.
  std::vector<int64_t> Load(int64_t step) const;
  // How many updates the parameter has had up to `step`.
  int64_t CountOf(int64_t step, int parameter) const {
    return At(step, parameter).load(std::memory_order_relaxed);
  }

 private:
  std::atomic<uint32_t>& At(int64_t step, int parameter) const {
    return counts_[step % 2 * num_parameters_ + parameter];
  }

  std::atomic<uint32_t>* counts_ = nullptr;
  int num_parameters_ = 0;
};

// What a decision fixes for every rank, and for every repetition of the update.
struct StepNumbers {
  double gradient_scale = 1.0;
  double gradient_norm = 0.0;
  std::vector<HyperParameters> groups;  // Empty: the step's before it, as of a write.
  bool is_write = false;                // The new version's parameters are in the state already.
  // With is_write: it counts as a step, not as a write.
  bool is_trainers_step = false;
  // With is_write: the values are this put's, which no trainer set; 0: they are trainers'.
  uint64_t put = 0;
  int64_t writes = 0;  // Of trainers, up to this step; counted by RecordDecision.
  // With is_write: the new version's moments are in the state already as well, and this is where
  // training stands then.
  std::optional<TrainingProgress> loaded;
};

// Where training stands after the decided `step`. Requires num_groups <= kMaxParamGroups.
TrainingProgress LoadProgress(const GroupPage& group, const UpdateCounts& counts, int64_t step,
                              int num_groups);

// Where a job begins: at step 0, with nothing decided. All ranks write equal values.
void RecordInitialProgress(GroupPage* group, const UpdateCounts& counts,
                           const TrainingProgress& progress);

// Records that every rank voted for `step`. The first caller decides; others find it done.
// `touched`: the parameters that some rank gave a gradient.
void RecordDecision(GroupPage* group, UpdateCounts counts, int64_t step, const StepNumbers& numbers,
                    const std::vector<bool>& touched);
// The numbers of the decided `step`. Requires num_groups <= kMaxParamGroups.
StepNumbers LoadDecision(const GroupPage& group, const UpdateCounts& counts, int64_t step,
                         int num_groups);

// What a host knows of its decided step, as words that another host's page takes over: both hosts
// are of one job.
int64_t HostProgressWords(int num_groups, int num_parameters);
// `words`: HostProgressWords of them. Requires that `step` is the decided one, and stays so.
void SaveHostProgress(const GroupPage& group, const UpdateCounts& counts, int64_t step,
                      int num_groups, absl::Span<uint64_t> words);
// Errors: DataLoss  they are of another step, or have numbers that no step has
absl::Status CheckHostProgress(absl::Span<const uint64_t> words, int64_t step, int num_groups);
bool IsInitialized(absl::Span<const uint64_t> words);  // As the page it was taken from.
// Ranks of a host may do so at once, of words that say the same.
void RestoreHostProgress(absl::Span<const uint64_t> words, GroupPage* group,
                         const UpdateCounts& counts, int num_groups);

// Called of a decided step by each rank that applies it, before the next one is decided: a decision
// is kept for two steps only.
void RememberPut(GroupPage* group, uint64_t put, int64_t step);

struct DecidedPut {
  int64_t step = 0;
  int64_t trained_step = 0;  // The trainers' last step before it.
};
// The step that this put is, if it was decided and no other one since. Requires put != 0. While
// ranks are in an epoch it may be decided right afterwards.
std::optional<DecidedPut> FindPut(const GroupPage& group, uint64_t put);

// Publishes that `rank`'s shard is whole at `step`, and wakes the waiters.
void PublishApplied(GroupPage* group, int rank, int64_t step);
// From now until PublishApplied the parameters that `rank` has published belong to no step, though
// its shard is valid. Called by the rank itself, while no peer reads.
void UnpublishApplied(GroupPage* group, int rank);
bool IsPublished(const GroupPage& group, int rank);

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_GROUP_PAGE_H_
