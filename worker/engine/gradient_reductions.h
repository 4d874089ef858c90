// The reductions of units' gradients since the last step: on the post-backward stream, so that the
// next unshard of backward does not wait for one.
//
//   trainer's slots of all ranks ── Reduce(unit) ──► this rank's shard of the mean, and its measure
//
// The engine's thread calls all of it; it may read results after Await.
#ifndef TESSERA_WORKER_ENGINE_GRADIENT_REDUCTIONS_H_
#define TESSERA_WORKER_ENGINE_GRADIENT_REDUCTIONS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kernels.h"
#include "layout/shard_map.h"
#include "layout/values.h"
#include "worker/engine/early_updates.h"
#include "worker/engine/engine_context.h"
#include "worker/engine/step_vote.h"

namespace tessera {

class GradientReductions {
 public:
  // Both outlive this.
  GradientReductions(EngineContext* context, EarlyUpdates* early);

  // Starts it. Errors: InvalidArgument     no such unit, dtype or memory
  //                    FailedPrecondition  the unit's state has no such transition; Aborted
  absl::Status Reduce(const Op& op);
  // Waits for what was started. The first error of it.
  absl::Status Await();
  // Whether some reduction is not through.
  bool is_under_way() const { return on_stream_.load() != 0; }

  // Whether the unit has a reduced gradient since the last step.
  bool is_reduced(int unit) const { return reduced_[unit]; }
  // Of the unit, in the rank's shard, in the full dtype.
  std::byte* Gradient(int unit) const;
  // The trainer's slot becomes the reduced gradient.
  absl::Status SetFromSlot(int unit);
  void Forget(int unit);
  void ForgetAll();
  // The vote's part that says what was reduced, for a norm of this p.
  absl::Status Measure(double norm_p, Vote* vote);

 private:
  // `number` is the reduction's in the flight record.
  void ReduceOnStream(const Op& op, DType dtype, bool accumulate, int64_t number);
  // Of a rank on a device: until what was put into its slot there is complete; ...
  absl::Status AwaitGradient(const Op& op, DType dtype);
  // ... or the trainer's slot, in host memory, to where reductions read.
  absl::Status BringToDevice(int unit, DType dtype);
  absl::Status ReduceOnce(int unit, DType dtype, bool accumulate);
  // Fills the rank's shard with the mean of what the ranks have in their slots; or with zeroes.
  absl::Status ReduceMapped(int unit, DType dtype, bool accumulate);
  absl::Status FakeReduction(int unit);
  absl::Status KeepLowPrecision(int unit, DType dtype);  // If the job rounds reduced gradients.
  Values ReducedValues(int unit) const;
  absl::Status MeasureReduced(int unit, RankKernels* kernels);
  // Of all reduced gradients, for norms that are not measured in the reduction.
  absl::StatusOr<double> NormPart(double p);

  EngineContext& context_;
  EarlyUpdates& early_;
  std::vector<bool> reduced_;                             // Since the last step, by unit.
  std::vector<std::vector<ElementRange>> slices_;         // By unit: of each rank.
  std::vector<std::vector<ElementRange>> reduced_parts_;  // By unit: see layout/reduced_parts.h.
  // Of each unit's reduced gradient; written on the stream, read after Await.
  std::vector<host::GradientStats> stats_;
  std::atomic<int> on_stream_{0};  // Reductions that are not through.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_GRADIENT_REDUCTIONS_H_
