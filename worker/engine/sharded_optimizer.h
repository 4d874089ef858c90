// SGD, Adam or AdamW on one rank's shards, from one version of the state into the other.
//
//   state version v  (p, m, v) ──┐
//   reduced gradient  g ─────────┴─► state version v+1, and the parameters that trainers see
//
// One pass over memory. Only parameters that got a gradient are updated; others, and frozen ones,
// are carried over with their moments; padding is never touched. All of it is called on kernels,
// so it is done, or has failed, once their Finish says so. Thread-compatible.
//
// Source of the formulae: torch.optim.SGD, Adam and AdamW (dampening 0, no Nesterov, no AMSGrad).
#ifndef TESSERA_WORKER_ENGINE_SHARDED_OPTIMIZER_H_
#define TESSERA_WORKER_ENGINE_SHARDED_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "job/job_memory.h"
#include "layout/model_layout.h"
#include "layout/values.h"
#include "shm/parameter_plan.h"
#include "worker/device/rank_kernels.h"

namespace tessera {

// A run of consecutive elements of one parameter within the rank's shard.
struct ShardSegment {
  int unit = 0;
  int parameter = 0;                     // Index in the unit's FlatLayout.
  int job_parameter = 0;                 // Its number in the whole job.
  int64_t state_begin_elements = 0;      // In each state array, of elements of `dtype`.
  int64_t unit_begin_elements = 0;       // In the unit's unsharded flat parameter.
  int64_t parameter_begin_elements = 0;  // In the original parameter.
  int64_t numel = 0;
  int group = 0;
  bool requires_grad = true;
  DType dtype = DType::kFp32;  // Of the state: fp32 or fp64.
};

// All segments of `rank`, units and parameters in order.
std::vector<ShardSegment> SegmentsOf(const ModelLayout& layout, const JobConfig& config,
                                     const JobMemory& memory, Rank rank);

struct OptimizerStep {
  int64_t step = 1;  // The step that this update completes; 1 is the first.
  double gradient_scale = 1.0;
  std::vector<HyperParameters> groups;  // By param group of the job.
  // By parameter of the job: which of its updates this is, 1 is the first; 0: it has no gradient.
  std::vector<int64_t> updates;
  bool has_momentum = true;  // SGD: this update or one before it has momentum.
};

class ShardedOptimizer {
 public:
  // `state` is the rank's state region, `parameters` where it publishes, by unit; all of memory
  // that `kernels` know. Not owned.
  ShardedOptimizer(const JobConfig& config, const JobMemory& memory,
                   std::vector<ShardSegment> segments, std::byte* state,
                   std::vector<UnitParameters> parameters, RankKernels* kernels);

  // Reads version (step - 1) % 2, writes version step % 2 and publishes. Deterministic: repeating
  // it gives the same bytes.
  // Units that are `early` are updated already: what they became is published.
  void Apply(const OptimizerStep& step, const std::vector<bool>& early = {});
  // The same of one unit, which is not published: nobody sees it, and version (step - 1) % 2
  // stands. By `kernels`: another thread's than the rest.
  void UpdateEarly(int unit, const OptimizerStep& step, RankKernels* kernels);

  // Takes initial values of one unit: `unsharded` holds its flat parameter in the full dtype.
  // Writes version 0 and publishes; moments become 0.
  void Initialize(int unit, const std::byte* unsharded);

  // Writes one unit's shard, as of `step`, into its part in full precision of the parameters.
  // Requires a unit whose compute dtype is another than its full dtype.
  void PublishFullPrecision(int unit, int64_t step);
  // Puts the rank's part of `unsharded` (a unit's flat parameter, or its moments, in the full
  // dtype) into the array's version step % 2, where nobody looks yet; null: what the version before
  // has.
  void Stage(StateArray array, int unit, const std::byte* unsharded, int64_t step);
  // The same of one segment.
  void CopyFromVersionBefore(StateArray array, const ShardSegment& segment, int64_t step);
  // Where the segment's elements of version step % 2 are.
  Values Staged(StateArray array, const ShardSegment& segment, int64_t step) const;
  // The arrays of the state besides the parameters.
  std::vector<StateArray> Moments() const;
  // Begins initial values that Staged(segment, 0) takes: all of the rank's state becomes 0. Then
  // publishes them.
  void BeginInitial();
  void PublishInitial() { Publish(0); }
  // All of the rank's parameters, as of `step`.
  void Publish(int64_t step);
  // Makes version step % 2 whole, of which all units are staged, and publishes, unless that is done
  // already. Moments are carried over, unless they are staged as well. Deterministic, as Apply.
  void ApplyStaged(int64_t step, bool with_moments, bool is_published = false);

  // Where a segment's elements are published: in one of these, the other is null.
  struct Published {
    std::byte* full = nullptr;
    host::HalfOutput half;
  };
  Published PublishedAt(const ShardSegment& segment) const;

  const std::vector<ShardSegment>& segments() const { return segments_; }
  const std::byte* Array(StateArray array, int version) const {
    return state_ + memory_.StateOffsetBytes(array, version);
  }

 private:
  // Where the segment begins.
  std::byte* State(StateArray array, int version, const ShardSegment& segment) const;
  static bool Continues(const ShardSegment& a, const ShardSegment& b, const OptimizerStep& step);
  // Calls `body` with runs of segments that the step treats alike, as one segment each.
  template <typename Body>
  void ForEachRun(const OptimizerStep& step, Body body) const;
  // Publishes there, if anywhere.
  void ApplySegment(const ShardSegment& segment, const OptimizerStep& step,
                    const Published& published, RankKernels* kernels);
  void UpdateSegment(const ShardSegment& segment, const OptimizerStep& step,
                     const Published& published, RankKernels* kernels);
  void CopyVersion(StateArray array, const ShardSegment& segment, int64_t step,
                   RankKernels* kernels);
  void CarryMomentsOver(const ShardSegment& segment, int64_t step, RankKernels* kernels);
  void PublishValues(const ShardSegment& segment, const std::byte* values);

  const JobConfig config_;
  const JobMemory memory_;
  const std::vector<ShardSegment> segments_;
  std::byte* const state_;
  const std::vector<UnitParameters> parameters_;
  RankKernels* const kernels_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_SHARDED_OPTIMIZER_H_
