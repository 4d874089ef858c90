#include "tests/gpu/step_work.h"

#include <cmath>
#include <utility>

#include "absl/memory/memory.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_rank_device.h"

namespace tessera {
namespace gpu_check {

float InitialElement(int unit, int64_t i) {
  return 0.01f * static_cast<float>((i + 31 * unit) % 97 - 48);
}

absl::StatusOr<std::unique_ptr<ModelWork>> ModelWork::Create(RankDevice* device,
                                                             const StepShape& shape) {
  if (!device->is_separate()) return absl::InvalidArgumentError("a model's work needs a GPU");
  ASSIGN_OR_RETURN(std::unique_ptr<CudaRankKernels> kernels,
                   CudaRankKernels::Create(static_cast<CudaRankDevice*>(device)->cuda_device(),
                                           shape.unit_numel));
  auto work = absl::WrapUnique(new ModelWork(shape, kernels.release()));
  ASSIGN_OR_RETURN(work->scratch_, device->Allocate(shape.unit_numel * sizeof(float)));
  for (int unit = 0; unit < shape.num_units; ++unit) {
    ASSIGN_OR_RETURN(Buffer gradient, device->Allocate(shape.unit_numel * sizeof(uint16_t)));
    work->gradients_.push_back(std::move(gradient));
  }
  return work;
}

void* ModelWork::stream() const { return static_cast<CudaStream*>(kernels_->stream())->handle(); }

void ModelWork::Pass(const void* halves) {
  kernels_->Reduce({halves}, DType::kBf16, shape_.unit_numel, 1.0, /*accumulate=*/false,
                   {scratch_.data(), DType::kFp32}, /*measure=*/false);
}

void ModelWork::Forward(const void* halves) {
  for (int pass = 0; pass < shape_.forward_passes; ++pass) Pass(halves);
}

void ModelWork::Backward(int unit, const void* halves) {
  for (int pass = 0; pass < 2 * shape_.forward_passes; ++pass) Pass(halves);
  kernels_->CastToHalf(ConstValues(scratch_.data(), shape_.unit_numel, DType::kFp32),
                       {gradients_[unit].data_as<uint16_t>(), DType::kBf16});
}

ModelPasses ModelWork::passes() {
  const auto forward = [this](int, const void* halves) {
    Forward(halves);
    return absl::OkStatus();  // The device keeps its error.
  };
  const auto backward = [this](int unit, const void* halves) {
    Backward(unit, halves);
    return absl::OkStatus();
  };
  return {forward, backward};
}

absl::StatusOr<std::unique_ptr<PlainTraining>> PlainTraining::Create(
    RankDevice* device, const StepShape& shape, const HyperParameters& numbers) {
  auto training = absl::WrapUnique(new PlainTraining(shape, numbers));
  RETURN_IF_ERROR(training->SetUp(device));
  return training;
}

absl::Status PlainTraining::SetUp(RankDevice* device) {
  ASSIGN_OR_RETURN(model_, ModelWork::Create(device, shape_));
  CudaRankKernels& kernels = model_->kernels();
  const int64_t bytes = shape_.unit_numel * sizeof(float);
  ASSIGN_OR_RETURN(gradient_, device->Allocate(bytes));
  std::vector<float> values(shape_.unit_numel);
  for (int u = 0; u < shape_.num_units; ++u) {
    Unit unit;
    ASSIGN_OR_RETURN(unit.halves, device->Allocate(bytes / 2));
    ASSIGN_OR_RETURN(unit.p, device->Allocate(bytes));
    ASSIGN_OR_RETURN(unit.m, device->Allocate(bytes));
    ASSIGN_OR_RETURN(unit.v, device->Allocate(bytes));
    for (int64_t i = 0; i < shape_.unit_numel; ++i) values[i] = InitialElement(u, i);
    kernels.Copy(unit.p.data(), values.data(), bytes);
    kernels.CastToHalf(ConstValues(unit.p.data(), shape_.unit_numel, DType::kFp32),
                       {unit.halves.data_as<uint16_t>(), DType::kBf16});
    kernels.Clear(unit.m.data(), bytes);
    kernels.Clear(unit.v.data(), bytes);
    RETURN_IF_ERROR(kernels.Finish());
    units_.push_back(std::move(unit));
  }
  return absl::OkStatus();
}

absl::Status PlainTraining::Step() {
  const int64_t step = ++steps_;
  CudaRankKernels& kernels = model_->kernels();
  for (int u = 0; u < shape_.num_units; ++u) model_->Forward(halves(u));
  for (int u = shape_.num_units - 1; u >= 0; --u) model_->Backward(u, halves(u));
  host::AdamParams params;
  params.learning_rate = numbers_.learning_rate;
  params.beta1 = numbers_.beta1;
  params.beta2 = numbers_.beta2;
  params.epsilon = numbers_.epsilon;
  params.weight_decay = numbers_.weight_decay;
  params.bias_correction1 = 1.0 - std::pow(numbers_.beta1, step);
  params.bias_correction2 = 1.0 - std::pow(numbers_.beta2, step);
  params.decoupled_weight_decay = true;
  for (int u = 0; u < shape_.num_units; ++u) {
    kernels.Reduce({model_->gradient(u)}, DType::kBf16, shape_.unit_numel, 1.0,
                   /*accumulate=*/false, {gradient_.data(), DType::kFp32}, /*measure=*/false);
    Unit& unit = units_[u];
    UpdateArrays arrays;
    arrays.count = shape_.unit_numel;
    arrays.gradient = gradient_.data();
    arrays.p_in = arrays.p_out = unit.p.data();
    arrays.m_in = arrays.m_out = unit.m.data();
    arrays.v_in = arrays.v_out = unit.v.data();
    arrays.publish_half = {unit.halves.data_as<uint16_t>(), DType::kBf16};
    kernels.AdamStep(params, arrays);
  }
  return kernels.Finish();
}

}  // namespace gpu_check
}  // namespace tessera
