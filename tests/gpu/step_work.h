// What a step of gpu_step_bench.h computes, without a job: the model's part, and plain training.
#ifndef TESSERA_TESTS_GPU_STEP_WORK_H_
#define TESSERA_TESTS_GPU_STEP_WORK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "worker/device/cuda/cuda_rank_kernels.h"
#include "worker/device/rank_device.h"

namespace tessera {
namespace gpu_check {

struct StepShape {
  int num_units = 1;
  int64_t unit_numel = 1;
  int forward_passes = 1;
};

// The value that element `i` of unit `unit` begins with.
float InitialElement(int unit, int64_t i);

// What enqueues forward and backward of a unit, whose parameters are `halves` in bf16, on a model's
// stream. Empty ones: nothing does.
struct ModelPasses {
  using Pass = std::function<absl::Status(int unit, const void* halves)>;
  Pass forward, backward;
};

// A model's forward and backward, on a stream of its own. Thread-compatible.
class ModelWork {
 public:
  // `device` is a GPU and outlives this. Errors: those of the device
  static absl::StatusOr<std::unique_ptr<ModelWork>> Create(RankDevice* device,
                                                           const StepShape& shape);

  // Both enqueue. `halves`: the unit's parameters in bf16.
  void Forward(const void* halves);
  void Backward(int unit, const void* halves);  // Then the gradient is there.
  ModelPasses passes();                         // These two.
  const uint16_t* gradient(int unit) const { return gradients_[unit].data_as<uint16_t>(); }

  CudaRankKernels& kernels() { return *kernels_; }
  void* stream() const;  // CUDA's CUstream, as of DeviceGradients::AfterStream.

 private:
  ModelWork(const StepShape& shape, CudaRankKernels* kernels) : shape_(shape), kernels_(kernels) {}
  void Pass(const void* halves);

  const StepShape shape_;
  Buffer scratch_;                 // fp32, of a unit.
  std::vector<Buffer> gradients_;  // bf16, by unit.
  std::unique_ptr<CudaRankKernels> kernels_;
};

// Training on the device without anything else.
class PlainTraining {
 public:
  // As ModelWork::Create. The optimizer is AdamW with these numbers.
  static absl::StatusOr<std::unique_ptr<PlainTraining>> Create(RankDevice* device,
                                                               const StepShape& shape,
                                                               const HyperParameters& numbers);
  absl::Status Step();  // Whole, and waited for.
  const void* halves(int unit) const { return units_[unit].halves.data(); }
  ModelWork& model() { return *model_; }

 private:
  struct Unit {
    Buffer halves, p, m, v;
  };
  PlainTraining(const StepShape& shape, const HyperParameters& numbers)
      : shape_(shape), numbers_(numbers) {}
  absl::Status SetUp(RankDevice* device);

  const StepShape shape_;
  const HyperParameters numbers_;
  int64_t steps_ = 0;
  Buffer gradient_;  // fp32, of a unit.
  std::vector<Unit> units_;
  std::unique_ptr<ModelWork> model_;  // Before what it works on goes.
};

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_STEP_WORK_H_
