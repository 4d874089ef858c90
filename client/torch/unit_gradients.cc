#include "client/torch/unit_gradients.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstddef>

#include "base/status_macros.h"
#include "client/cpp/device_gradients.h"
#include "client/torch/precision_rules.h"

namespace tessera {

void AwaitStreamOf(const torch::Device& device) {
  if (device.is_cpu() || device.is_meta()) return;
  c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

absl::Status UnitGradients::Add(int unit, int parameter, const torch::Tensor& gradient) {
  const DType dtype = session_->full_dtype(unit);
  torch::Tensor whole = gradient.detach().to(ScalarTypeOf(dtype));
  // Of an embedding, perhaps: rows that come twice are summed in full precision.
  if (whole.is_sparse()) whole = whole.to_dense();
  whole = whole.contiguous();
  if (whole.device().is_cpu()) {
    return session_->AddGradient(unit, parameter,
                                 ConstValues(whole.data_ptr(), whole.numel(), dtype));
  }
  kept_[unit].emplace_back(parameter, std::move(whole));
  return absl::OkStatus();
}

absl::Status UnitGradients::Flush(int unit) {
  if (kept_[unit].empty()) return absl::OkStatus();
  AwaitStreamOf(kept_[unit].front().second.device());
  DeviceGradients gradients(session_);
  for (const auto& [parameter, gradient] : kept_[unit]) {
    RETURN_IF_ERROR(gradients.Add(unit, parameter, gradient.data_ptr(), gradient.numel(),
                                  session_->full_dtype(unit)));
  }
  RETURN_IF_ERROR(gradients.Finish());  // Then their memory may be used again.
  kept_[unit].clear();
  return absl::OkStatus();
}

void UnitGradients::Drop() {
  for (auto& of_unit : kept_) of_unit.clear();
}

}  // namespace tessera
