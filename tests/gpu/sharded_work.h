// A job of one rank that does the work of step_work.h: what gpu_step_bench.h and step_overlap.h
// measure.
#ifndef TESSERA_TESTS_GPU_SHARDED_WORK_H_
#define TESSERA_TESTS_GPU_SHARDED_WORK_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/gpu/step_work.h"
#include "tests/testing/gpu_under_test.h"

namespace tessera {
namespace gpu_check {

// Not moved: the session knows the device. Thread-compatible.
class ShardedTraining {
 public:
  using Initial = std::function<float(int unit, int64_t i)>;
  // `model` is on the same GPU; it and the cluster outlive this.
  static absl::StatusOr<std::unique_ptr<ShardedTraining>> Open(SessionOptions options,
                                                               ModelWork* model,
                                                               const Initial& initial);
  ShardedTraining(std::unique_ptr<Session> session, ModelWork* model)
      : session_(std::move(session)), model_(model) {}

  // Forward and backward in windows, gradients, reductions and the step, waited for.
  absl::StatusOr<StepResult> Step() { return Step(model_->passes(), {}); }
  // With others that compute, or none, and the gradients that the model left.
  absl::StatusOr<StepResult> Step(const ModelPasses& passes, const StepOptions& options);
  // Whether each unit has these parameters, bit for bit.
  absl::Status Compare(const PlainTraining& plain);

 private:
  const std::unique_ptr<Session> session_;
  ModelWork* const model_;
};

// The job, but for its name and where its executor is.
SessionOptions ShardedJob(const testing_support::GpuUnderTest& gpu, const LocalCluster& cluster,
                          const StepShape& shape);

// Of one worker, whose executors are processes where trainers do not have them.
absl::StatusOr<std::unique_ptr<LocalCluster>> StartBenchCluster(
    const testing_support::GpuUnderTest& gpu);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_SHARDED_WORK_H_
