#include "client/torch/unit_gradients.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/status_macros.h"
#include "client/torch/precision_rules.h"
#include "client/torch/torch_device.h"
#include "tessera/device_gradients.h"

namespace tessera {

namespace {

c10::Stream StreamOf(const torch::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// What `gradients` do from now on comes after what the stream was given so far.
void Follow(const c10::Stream& stream, DeviceGradients* gradients) {
  if (stream.id() == 0) {
    // On the GPU the stream waits, not the thread.
    gradients->AfterStream(LegacyDefaultStream());
  } else {  // Its handle is known to libtorch's own CUDA code only.
    stream.synchronize();
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
  // Branches of a model may have streams of their own, and autograd follows them.
  const c10::Stream stream = StreamOf(whole.device());
  std::vector<c10::Stream>& streams = streams_[unit];
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  kept_[unit].emplace_back(parameter, std::move(whole));
  return absl::OkStatus();
}

void FollowStreamOf(Session* session, int unit, const torch::Device& device) {
  DeviceGradients gradients(session);
  if (gradients.HasSlot(unit)) Follow(StreamOf(device), &gradients);
}

absl::Status UnitGradients::Flush(int unit) {
  if (kept_[unit].empty()) return absl::OkStatus();
  DeviceGradients gradients(session_);
  RETURN_IF_ERROR(gradients.Finish());  // Of the unit before: then its memory may be used again.
  reading_.clear();
  for (const c10::Stream& stream : std::exchange(streams_[unit], {})) Follow(stream, &gradients);
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
  for (int unit = 0; unit < session_->num_units(); ++unit) Drop(unit);
  reading_.clear();
}

void UnitGradients::Drop(int unit) {
  kept_[unit].clear();
  streams_[unit].clear();
}

}  // namespace tessera
