#include "client/torch/unit_gradients.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstddef>

#include "base/status_macros.h"
#include "client/torch/precision_rules.h"
#include "client/torch/torch_device.h"
#include "tessera/device_gradients.h"

namespace tessera {

namespace {

bool IsDefaultStream(const torch::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).id() == 0;
}

// What `gradients` do from now on comes after what the calling thread's stream was given so far.
void FollowStreamOf(const torch::Device& device, DeviceGradients* gradients) {
  if (IsDefaultStream(device)) {
    // On the GPU the stream waits, not the thread.
    gradients->AfterStream(LegacyDefaultStream());
  } else {  // Its handle is known to libtorch's own CUDA code only.
    AwaitStreamOf(device);
  }
}

}  // namespace

absl::Status UnitGradients::Add(int unit, int parameter, const torch::Tensor& gradient) {
  const DType dtype = session_->full_dtype(unit);
  // Autograd may give half precision or another layout. Slots have the full dtype.
  torch::Tensor whole = gradient.detach().to(ScalarTypeOf(dtype));
  // A sparse gradient, as of an embedding: rows that occur twice are summed in full precision.
  if (whole.is_sparse()) whole = whole.to_dense();
  whole = whole.contiguous();
  if (!DeviceGradients(session_).available()) {
    return session_->AddGradient(unit, parameter,
                                 ConstValues(whole.data_ptr(), whole.numel(), dtype));
  }
  kept_[unit].emplace_back(parameter, std::move(whole));
  return absl::OkStatus();
}

void FollowStreamOf(Session* session, int unit, const torch::Device& device) {
  DeviceGradients gradients(session);
  if (gradients.HasSlot(unit)) FollowStreamOf(device, &gradients);
}

absl::Status UnitGradients::Flush(int unit) {
  if (kept_[unit].empty()) return absl::OkStatus();
  DeviceGradients gradients(session_);
  RETURN_IF_ERROR(gradients.Finish());  // Of the unit before: then its memory may be used again.
  reading_.clear();
  FollowStreamOf(kept_[unit].front().second.device(), &gradients);
  for (const auto& [parameter, gradient] : kept_[unit]) {
    // Enqueued only: the tensors must stay until the next Flush has finished it.
    RETURN_IF_ERROR(gradients.Add(unit, parameter, gradient.data_ptr(), gradient.numel(),
                                  session_->full_dtype(unit)));
  }
  // Kept while the device reads them.
  reading_.swap(kept_[unit]);
  return absl::OkStatus();
}

void UnitGradients::Drop() {
  // Some of it may be in use just now. The next operation returns an error of that.
  (void)DeviceGradients(session_).Finish();
  for (auto& of_unit : kept_) of_unit.clear();
  reading_.clear();
}

}  // namespace tessera
