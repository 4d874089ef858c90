// How a job trains: what JobConfig of the wire says, checked. Plain values.
#ifndef TESSERA_JOB_JOB_CONFIG_H_
#define TESSERA_JOB_JOB_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "job/field_limits.h"
#include "layout/flat_layout.h"
#include "layout/model_layout.h"
#include "layout/strategy.h"

namespace tessera {

constexpr int64_t kMaxSequence = int64_t{1} << 20;  // Operations in a pass of a step.

// When a trainer asks for the parameters of the unit that backward needs next.
enum class BackwardPrefetch {
  kNone,  // When it needs them.
  kPre,   // Before the gradients of the unit in hand are computed: two units are unsharded.
  kPost,  // After that.
};

enum class OptimizerKind { kSgd, kAdam, kAdamW };

// What may change from step to step. An optimizer reads those that its formula has.
struct HyperParameters {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  double momentum = 0.0;
};

struct ParamGroup : HyperParameters {
  // Empty in the first group: all others. Of a parameter with tied weights its first name counts.
  std::vector<std::string> parameter_names;
};

struct JobConfig {
  int world_size = 1;
  Strategy strategy = Strategy::kFullShard;  // Of units that name none of their own.
  // Of the hybrid strategies: so many ranks have the model once, each group on a worker of its own.
  // Divides world_size; 0: no unit is hybrid.
  int shard_group_size = 0;
  // Of FULL_SHARD: after forward so many ranks keep a unit between them, so that its backward
  // gathers from no further; between 1 and world_size, and divides it. 0: nobody does.
  int reshard_group_size = 0;
  // fp32, bf16 or fp16. Shards are fp32, and those of fp64 parameters fp64; for these, "fp32" means
  // full precision, here and below, so that they compute and travel in fp64 or in bf16 or fp16.
  DType compute_dtype = DType::kFp32;
  // What gradients travel in: fp32, bf16 or fp16. Sums over ranks are in the shards' dtype whatever
  // it is.
  DType reduce_dtype = DType::kFp32;
  // The optimizer gets the mean over the ranks rounded to reduce_dtype, not as it is in fp32.
  bool keep_low_precision_gradients = false;
  LayoutOptions layout;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  std::vector<ParamGroup> groups = {ParamGroup()};
  double max_gradient_norm = 0.0;  // 0: no clipping.
  double gradient_norm_p = 2.0;    // Of the norm: above 0; infinity: the largest magnitude.
  int max_gathered_units = 2;      // What an executor gathers ahead of its trainer, at most.
  // The same in bytes of unsharded parameters; 0: no such bound. A unit that is larger than this is
  // gathered when the trainer asks for it.
  int64_t max_gathered_bytes = 0;
  int gradient_slots = 2;  // Slots for unsharded gradients besides the root's; 0: one per unit.
  absl::Duration collective_timeout = absl::Minutes(2);
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  // The shards of parameters, their reduced gradients and the optimizer's state are in host memory,
  // and the optimizer runs there. On a CPU worker they are anyway. Then gradients that are reduced
  // cannot be added to: accumulate before reducing.
  bool cpu_offload = false;
  // A unit is updated as soon as its gradient is reduced, during backward, with the numbers that
  // the trainer announced (Session::AnnounceStep) or else the last step's. Seen only once the step
  // is decided; what turns out otherwise then (other numbers, a division, a parameter that only
  // other ranks gave a gradient) is computed again. Not with clipping, which needs all gradients
  // first.
  bool optimizer_in_backward = false;
  // For measuring what the others cost: ordered, counted and recorded as ever, but nothing moves.
  // With the first, other hosts' parameters stay what they were here; with the second, every
  // reduced gradient is 0. Such a job says so wherever it is shown, and cannot be saved.
  bool fake_all_gather = false;
  bool fake_reduce_scatter = false;
  // Every so many steps a rank computes a checksum of its shards right after the step, and again
  // before the next one is taken, which fails with DataLoss if they changed meanwhile; 0: never.
  // Costs two readings of the shards each time. Of shards in the host's memory.
  int shard_check_interval_steps = 0;
  // A forward asks for the unit after the one in hand too, as its first forward had them.
  bool forward_prefetch = false;
};

// What is fake in the job, for display: "fake all-gather, fake reduce-scatter"; empty: nothing.
std::string FakeText(bool fake_all_gather, bool fake_reduce_scatter);

// Whether a worker can train this. The coordinator accepts no other job.
// Errors: InvalidArgument  naming the field, or the param group's parameter that the model lacks
//                          or that two groups claim, or only by another name of tied weights.
absl::Status ValidateJobConfig(const JobConfig& config, const ModelSpec& model);

// Errors: InvalidArgument  naming the param group and the number that is out of range.
absl::Status ValidateHyperParameters(const HyperParameters& numbers, size_t group);

// Index into config.groups for a parameter.
int GroupOf(const JobConfig& config, const std::string& parameter_name);

}  // namespace tessera

#endif  // TESSERA_JOB_JOB_CONFIG_H_
