// A rank's device whose kernels do something more, for tests: all else is the device's own.
#ifndef TESSERA_TESTS_GPU_WRAPPED_DEVICE_H_
#define TESSERA_TESTS_GPU_WRAPPED_DEVICE_H_

#include <functional>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "worker/device/rank_device.h"
#include "worker/device/rank_kernels.h"

namespace tessera {
namespace gpu_check {

class WrappedKernels : public RankKernels {
 public:
  explicit WrappedKernels(std::unique_ptr<RankKernels> own) : own_(std::move(own)) {}

  void Reduce(absl::Span<const void* const> inputs, DType input_dtype, int64_t count, double scale,
              bool accumulate, host::SumOutput output, bool measure) override {
    own_->Reduce(inputs, input_dtype, count, scale, accumulate, output, measure);
  }
  void Copy(void* to, const void* from, int64_t size_bytes) override {
    own_->Copy(to, from, size_bytes);
  }
  void Clear(void* at, int64_t size_bytes) override { own_->Clear(at, size_bytes); }
  void AdamStep(const host::AdamParams& params, const UpdateArrays& arrays) override {
    own_->AdamStep(params, arrays);
  }
  void SgdStep(const host::SgdParams& params, const UpdateArrays& arrays) override {
    own_->SgdStep(params, arrays);
  }
  void CastToHalf(ConstValues from, host::HalfOutput to) override { own_->CastToHalf(from, to); }
  void RoundToHalf(DType half, Values values) override { own_->RoundToHalf(half, values); }
  void Measure(ConstValues gradient) override { own_->Measure(gradient); }
  void AddToNormPart(ConstValues gradient, double p) override { own_->AddToNormPart(gradient, p); }
  void Record(SharedEvent* event) override { own_->Record(event); }
  void WaitForStream(void* stream) override { own_->WaitForStream(stream); }
  absl::Status Finish() override { return own_->Finish(); }
  absl::Status TakeStats(host::GradientStats* stats) override { return own_->TakeStats(stats); }
  absl::StatusOr<double> TakeNormPart() override { return own_->TakeNormPart(); }
  absl::StatusOr<Buffer> AllocateOnHost(int64_t size_bytes) override {
    return own_->AllocateOnHost(size_bytes);
  }

 protected:
  RankKernels* own() const { return own_.get(); }

 private:
  const std::unique_ptr<RankKernels> own_;
};

class WrappedDevice : public RankDevice {
 public:
  using Wrap = std::function<std::unique_ptr<RankKernels>(std::unique_ptr<RankKernels>)>;
  WrappedDevice(std::unique_ptr<RankDevice> own, Wrap wrap)
      : own_(std::move(own)), wrap_(std::move(wrap)) {}

  absl::string_view name() const override { return own_->name(); }
  int number() const override { return own_->number(); }
  bool is_separate() const override { return own_->is_separate(); }
  absl::StatusOr<Buffer> MapRegion(int descriptor, int64_t size_bytes, bool writable) override {
    return own_->MapRegion(descriptor, size_bytes, writable);
  }
  absl::StatusOr<Buffer> Allocate(int64_t size_bytes) override {
    return own_->Allocate(size_bytes);
  }
  absl::StatusOr<std::unique_ptr<SharedEvent>> CreateSharedEvent() override {
    return own_->CreateSharedEvent();
  }
  absl::StatusOr<std::unique_ptr<SharedEvent>> OpenSharedEvent(
      const SharedEventName& name) override {
    return own_->OpenSharedEvent(name);
  }
  void PutGathersFirst() override { own_->PutGathersFirst(); }
  absl::StatusOr<Buffer> Pin(void* memory, int64_t size_bytes) override {
    return own_->Pin(memory, size_bytes);
  }
  absl::Status Synchronize() override { return own_->Synchronize(); }
  absl::StatusOr<std::unique_ptr<RankKernels>> CreateKernels(
      const KernelOptions& options) override {
    ASSIGN_OR_RETURN(std::unique_ptr<RankKernels> kernels, own_->CreateKernels(options));
    return wrap_(std::move(kernels));
  }

 private:
  const std::unique_ptr<RankDevice> own_;
  const Wrap wrap_;
};

// Of `make`, with its kernels wrapped where it is a GPU.
inline MakeRankDevice WrapDevices(MakeRankDevice make, WrappedDevice::Wrap wrap) {
  return [make = std::move(make), wrap = std::move(wrap)](
             const DeviceName& name) -> absl::StatusOr<std::unique_ptr<RankDevice>> {
    ASSIGN_OR_RETURN(std::unique_ptr<RankDevice> device, make(name));
    if (!device->is_separate()) return device;
    return std::make_unique<WrappedDevice>(std::move(device), wrap);
  };
}

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_WRAPPED_DEVICE_H_
