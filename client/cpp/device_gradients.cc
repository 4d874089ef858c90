#include "client/cpp/device_gradients.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "client/cpp/session.h"

namespace tessera {

int DeviceGradients::device() const { return session_->memory_.device->number(); }

absl::Status DeviceGradients::Finish() {
  return available() ? session_->memory_.kernels->Finish() : absl::OkStatus();
}

void DeviceGradients::AfterStream(void* stream) {
  if (available()) session_->memory_.kernels->WaitForStream(stream);
}

absl::Status DeviceGradients::Check(int unit, int parameter, int64_t numel, DType dtype) const {
  if (!available()) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", session_->rank(), " is on no GPU"));
  }
  RETURN_IF_ERROR(session_->CheckUnit(unit));
  RETURN_IF_ERROR(session_->CheckTakesGradient(unit, parameter, numel));
  const std::string& name = session_->UnitName(unit);
  if (!IsHalf(dtype) && dtype != session_->full_dtype(unit)) {
    return absl::InvalidArgumentError(absl::StrCat("gradient of unit '", name, "' is in ",
                                                   Name(dtype), ", its parameters in ",
                                                   Name(session_->full_dtype(unit))));
  }
  if (!session_->hooks_[unit].empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "unit '", name, "' has a communication hook, which looks at the processor's memory"));
  }
  if (session_->gradients_[unit].begun && !session_->gradients_[unit].on_device) {
    return absl::FailedPreconditionError(absl::StrCat(
        "unit '", name, "' has a gradient in the processor's memory that is not reduced yet"));
  }
  return absl::OkStatus();
}

absl::Status DeviceGradients::Add(int unit, int parameter, const void* values, int64_t numel,
                                  DType dtype) {
  RETURN_IF_ERROR(Check(unit, parameter, numel, dtype));
  RETURN_IF_ERROR(session_->BeginGradient(unit));
  UnitGradient& gradient = session_->gradients_[unit];
  const PlacedParameter& placed = session_->layout_.units[unit].flat.parameters()[parameter];
  if (IsHalf(dtype) && IsHalf(gradient.dtype) && dtype != gradient.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("gradient of '", placed.spec.name, "' is in ",
                                                   Name(dtype), ", and the unit's travel in ",
                                                   Name(gradient.dtype)));
  }
  gradient.on_device = true;
  const bool add = gradient.contributed[parameter] != 0;
  gradient.contributed[parameter] = 1;
  session_->Touch(unit, parameter);
  if (numel == 0) return absl::OkStatus();
  std::byte* slot = session_->DeviceSlot(unit) + placed.offset_elements * SizeBytes(gradient.dtype);
  RankKernels& kernels = *session_->memory_.kernels;
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
  RankKernels& kernels = *session_->memory_.kernels;
  const DType half = session_->gradients_[unit].dtype, full = session_->full_dtype(unit);
  Buffer& sum = session_->memory_.sum;
  if (sum.size_bytes() < numel * SizeBytes(full)) {
    RETURN_IF_ERROR(kernels.Finish());  // It may still be read.
    sum.Reset();
    ASSIGN_OR_RETURN(sum, session_->memory_.device->Allocate(numel * SizeBytes(full)));
  }
  kernels.Reduce({slot}, half, numel, 1.0, /*accumulate=*/false, {sum.data(), full},
                 /*measure=*/false);
  kernels.Reduce({values}, dtype, numel, 1.0, /*accumulate=*/true, {sum.data(), full},
                 /*measure=*/false);
  kernels.CastToHalf(ConstValues(sum.data(), numel, full), {slot, half});
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> DeviceGradients::FinishSlot(int unit) {
  const DType dtype = session_->gradients_[unit].dtype;
  std::byte* slot = session_->DeviceSlot(unit);
  session_->ForEachUncovered(unit, [&](int64_t begin, int64_t end) {
    session_->memory_.kernels->Clear(slot + begin * SizeBytes(dtype),
                                     (end - begin) * SizeBytes(dtype));
  });
  return MarkEnd();
}

bool DeviceGradients::HasSlot(int unit) const {
  return session_->memory_.slot_windows.HasSlot(unit);
}

int DeviceGradients::OtherInSlot(int unit) const {
  return session_->memory_.slot_windows.OtherIn(unit);
}

absl::StatusOr<uint32_t> DeviceGradients::EndWindow(int unit) {
  if (!HasSlot(unit)) return 0;
  return MarkEnd();
}

absl::StatusOr<uint32_t> DeviceGradients::MarkEnd() {
  MappedRank& memory = session_->memory_;
  const uint32_t index = memory.next_event++ % kGradientEvents;
  // The executor takes the names away where it cannot open what they name.
  if (!memory.gradient_events.empty() &&
      !(session_->page()->gradient_events[index] == memory.gradient_events[index]->name())) {
    TESSERA_LOG(WARNING,
                "rank {}: its executor opens no event of this process, which waits for its GPU "
                "from now on",
                session_->rank());
    memory.gradient_events.clear();
  }
  if (memory.gradient_events.empty()) {
    RETURN_IF_ERROR(memory.kernels->Finish());
    return 0;
  }
  memory.kernels->Record(memory.gradient_events[index].get());
  return 1 + index;
}

void DeviceGradients::NameEvents(Session* session) {
  MappedRank& memory = session->memory_;
  std::vector<std::unique_ptr<SharedEvent>> events;
  for (uint32_t i = 0; i < kGradientEvents; ++i) {
    absl::StatusOr<std::unique_ptr<SharedEvent>> event = memory.device->CreateSharedEvent();
    if (!event.ok()) return;  // The trainer waits for its GPU instead.
    session->page()->gradient_events[i] = (*event)->name();
    events.push_back(*std::move(event));
  }
  memory.gradient_events = std::move(events);
}

}  // namespace tessera
