#include "tessera/device_gradients.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/session/session_state.h"
#include "tessera/session.h"

namespace tessera {

int DeviceGradients::device() const { return session_->state().client.memory().device->number(); }

absl::Status DeviceGradients::Finish() {
  return available() ? session_->state().client.memory().kernels->Finish() : absl::OkStatus();
}

void DeviceGradients::AfterStream(void* stream) {
  // On the device: this thread waits for nothing.
  if (available()) session_->state().client.memory().kernels->WaitForStream(stream);
}

absl::Status DeviceGradients::Check(int unit, int parameter, int64_t numel, DType dtype) const {
  if (!available()) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", session_->rank(), " is on no GPU"));
  }
  // All checks come before anything changes, so that a refused gradient leaves the slot as it was.
  RETURN_IF_ERROR(session_->state().client.CheckUnit(unit));
  RETURN_IF_ERROR(session_->state().reducer.CheckTakesGradient(unit, parameter, numel));
  const std::string& name = session_->state().client.UnitName(unit);
  if (!IsHalf(dtype) && dtype != session_->full_dtype(unit)) {
    return absl::InvalidArgumentError(absl::StrCat("gradient of unit '", name, "' is in ",
                                                   Name(dtype), ", its parameters in ",
                                                   Name(session_->full_dtype(unit))));
  }
  const DType of_slot = session_->state().reducer.SlotDtype(unit);
  if (IsHalf(dtype) && IsHalf(of_slot) && dtype != of_slot) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gradient of '", session_->layout().units[unit].flat.parameters()[parameter].spec.name,
        "' is in ", Name(dtype), ", and the unit's travel in ", Name(of_slot)));
  }
  if (session_->state().reducer.has_hook(unit)) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", name, "' has a communication hook, which reads host memory"));
  }
  // A slot in host memory and one on the GPU are two places, and a reduction reads only one.
  if (session_->state().slots.gradient(unit).begun &&
      !session_->state().slots.gradient(unit).on_device) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", name, "' has a gradient in host memory that is not reduced yet"));
  }
  return absl::OkStatus();
}

absl::Status DeviceGradients::Add(int unit, int parameter, const void* values, int64_t numel,
                                  DType dtype) {
  RETURN_IF_ERROR(Check(unit, parameter, numel, dtype));
  RETURN_IF_ERROR(session_->state().reducer.Begin(unit));
  UnitGradient& gradient = session_->state().slots.gradient(unit);
  const PlacedParameter& placed = session_->layout().units[unit].flat.parameters()[parameter];
  gradient.on_device = true;
  const bool add = gradient.contributed[parameter] != 0;
  // Told to the executor in shared memory: which parameters have a gradient decides their update.
  gradient.contributed[parameter] = 1;
  session_->state().slots.SetTouched(unit, parameter, true);
  if (numel == 0) return absl::OkStatus();
  std::byte* slot =
      session_->state().slots.DeviceSlot(unit) + placed.offset_elements * SizeBytes(gradient.dtype);
  RankKernels& kernels = *session_->state().client.memory().kernels;
  if (dtype == gradient.dtype && !add) {
    kernels.Copy(slot, values, numel * SizeBytes(dtype));
  } else if (!IsHalf(gradient.dtype)) {
    kernels.Reduce({values}, dtype, numel, 1.0, add, {slot, gradient.dtype}, /*measure=*/false);
  } else if (!add) {
    kernels.CastToHalf(ConstValues(values, numel, dtype),
                       {reinterpret_cast<uint16_t*>(slot), gradient.dtype});
  } else {
    return AddToHalf(unit, reinterpret_cast<uint16_t*>(slot), values, numel, dtype);
  }
  return absl::OkStatus();
}

absl::Status DeviceGradients::AddToHalf(int unit, uint16_t* slot, const void* values, int64_t numel,
                                        DType dtype) {
  RankKernels& kernels = *session_->state().client.memory().kernels;
  // A half cannot be added to in place without rounding twice: summed in full precision and rounded
  // once.
  const DType half = session_->state().slots.gradient(unit).dtype,
              full = session_->full_dtype(unit);
  Buffer& sum = session_->state().client.memory().sum;
  if (sum.size_bytes() < numel * SizeBytes(full)) {
    RETURN_IF_ERROR(kernels.Finish());  // It may still be read.
    sum.Reset();
    ASSIGN_OR_RETURN(sum,
                     session_->state().client.memory().device->Allocate(numel * SizeBytes(full)));
  }
  kernels.Reduce({slot}, half, numel, 1.0, /*accumulate=*/false, {sum.data(), full},
                 /*measure=*/false);
  kernels.Reduce({values}, dtype, numel, 1.0, /*accumulate=*/true, {sum.data(), full},
                 /*measure=*/false);
  kernels.CastToHalf(ConstValues(sum.data(), numel, full), {slot, half});
  return absl::OkStatus();
}

bool DeviceGradients::HasSlot(int unit) const {
  return session_->state().client.memory().slot_windows.HasSlot(unit);
}

std::optional<int> DeviceGradients::OtherInSlot(int unit) const {
  const int other = session_->state().client.memory().slot_windows.OtherIn(unit);
  return other < 0 ? std::nullopt : std::optional(other);
}

}  // namespace tessera
