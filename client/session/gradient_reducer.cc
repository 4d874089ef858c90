#include "client/session/gradient_reducer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status_macros.h"
#include "client/session/trainer_events.h"
#include "kernels/kernels.h"

namespace tessera {
namespace {

// dst (+)= src, rounding to `dtype`, bf16 or fp16. In pieces that stay in the first-level cache.
void StoreHalf(DType dtype, absl::Span<const double> src, bool add, uint16_t* dst) {
  constexpr int64_t kPiece = 1024;
  float widened[kPiece];
  double piece[kPiece];
  for (size_t at = 0; at < src.size(); at += kPiece) {
    // Summed in double and rounded once for each contribution.
    const int64_t count = std::min<int64_t>(kPiece, src.size() - at);
    std::copy_n(src.data() + at, count, piece);
    if (add) {
      host::CastHalfToFp32(dtype, dst + at, widened, count);
      for (int64_t i = 0; i < count; ++i) piece[i] += static_cast<double>(widened[i]);
    }
    host::CastFp64ToHalf(dtype, piece, dst + at, count);
  }
}

void StoreHalf(DType dtype, absl::Span<const float> src, bool add, uint16_t* dst) {
  constexpr int64_t kPiece = 1024;
  float piece[kPiece];
  for (size_t at = 0; at < src.size(); at += kPiece) {
    const int64_t count = std::min<int64_t>(kPiece, src.size() - at);
    if (!add) {
      host::CastFp32ToHalf(dtype, src.data() + at, dst + at, count);
      continue;
    }
    host::CastHalfToFp32(dtype, dst + at, piece, count);
    host::Accumulate(piece, src.data() + at, count);
    host::CastFp32ToHalf(dtype, piece, dst + at, count);
  }
}

void Narrow(DType dtype, const float* src, uint16_t* dst, int64_t count) {
  host::CastFp32ToHalf(dtype, src, dst, count);
}

void Narrow(DType dtype, const double* src, uint16_t* dst, int64_t count) {
  host::CastFp64ToHalf(dtype, src, dst, count);
}

// In ascending order, piece by piece: output overwrites only input that was read already.
template <typename Real>
void CompressInPlace(DType dtype, absl::Span<Real> values) {
  constexpr int64_t kPiece = 1024;
  Real piece[kPiece];
  const int64_t count = values.size();
  for (int64_t at = 0; at < count; at += kPiece) {
    const int64_t size = std::min(kPiece, count - at);
    memcpy(piece, values.data() + at, size * sizeof(Real));
    Narrow(dtype, piece, reinterpret_cast<uint16_t*>(values.data()) + at, size);
  }
}

}  // namespace

const CommHook& GradientReducer::hook(int unit) const {
  static const CommHook* const none = new CommHook;
  return hooks_.empty() ? *none : hooks_[unit];
}

absl::Status GradientReducer::RegisterHook(std::optional<int> unit, CommHook hook) {
  if (unit.has_value()) RETURN_IF_ERROR(client_->CheckUnit(*unit));
  if (hook.empty()) return absl::InvalidArgumentError("a communication hook that does nothing");
  if (hook.compress && *hook.compress != DType::kFp32 && !IsHalf(*hook.compress)) {
    return absl::InvalidArgumentError(absl::StrCat("communication hook: compresses to ",
                                                   Name(*hook.compress), ": fp32, bf16 or fp16"));
  }
  // A hook changes what travels, which must be the same for a whole step on all ranks.
  if (slots_->within_step()) {
    return absl::FailedPreconditionError("a communication hook is registered between steps");
  }
  const int begin = unit.value_or(0), end = unit.has_value() ? begin + 1 : client_->num_units();
  for (int u = begin; u < end; ++u) {
    if (!has_hook(u)) continue;
    return absl::AlreadyExistsError(
        absl::StrCat("unit '", client_->UnitName(u), "' has a communication hook already"));
  }
  hooks_.resize(client_->num_units());
  std::fill(hooks_.begin() + begin, hooks_.begin() + end, hook);
  return absl::OkStatus();
}

absl::Status GradientReducer::Begin(int unit) {
  UnitGradient& gradient = slots_->gradient(unit);
  if (gradient.begun) return absl::OkStatus();
  // The clipping has seen the whole gradient. More of it would not be scaled alike.
  RETURN_IF_ERROR(slots_->CheckNotClipped("a gradient"));
  // Waits for the executor if it still reads the slot for another unit.
  RETURN_IF_ERROR(slots_->Take(unit));
  gradient.travels_in = TravelDtype(unit);
  gradient.dtype = SlotDtype(unit);
  gradient.begun = true;
  return absl::OkStatus();
}

DType GradientReducer::TravelDtype(int unit) const {
  const DType full = client_->layout().units[unit].full_dtype();
  const DType wanted = windows_->precision(unit) == Precision::kFull
                           ? full
                           : client_->plan().units()[unit].reduce_dtype;
  const DType travels_in = hook(unit).compress.value_or(wanted);
  // Sums of fp64 parameters do not travel in fp32.
  return IsHalf(travels_in) ? travels_in : full;
}

DType GradientReducer::SlotDtype(int unit) const {
  if (slots_->gradient(unit).begun) return slots_->gradient(unit).dtype;
  // Hooks see full precision, and round once.
  return hook(unit).compress || hook(unit).before ? client_->layout().units[unit].full_dtype()
                                                  : TravelDtype(unit);
}

absl::Status GradientReducer::CheckTakesGradient(int unit, int parameter, int64_t numel) const {
  const std::vector<PlacedParameter>& parameters = client_->layout().units[unit].flat.parameters();
  if (parameter < 0 || parameter >= static_cast<int>(parameters.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("unit '", client_->UnitName(unit), "' has no parameter ", parameter));
  }
  const PlacedParameter& placed = parameters[parameter];
  if (numel != placed.numel) {
    return absl::InvalidArgumentError(absl::StrCat("gradient of '", placed.spec.name, "' has ",
                                                   numel, " elements, the parameter ",
                                                   placed.numel));
  }
  if (!placed.spec.requires_grad) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", placed.spec.name, "' takes no gradient: it needed none when the job was created"));
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::Add(int unit, int parameter, ConstValues values) {
  RETURN_IF_ERROR(client_->CheckUnit(unit));
  // Before Begin, which takes the slot.
  RETURN_IF_ERROR(CheckTakesGradient(unit, parameter, static_cast<int64_t>(values.size())));
  const PlacedParameter& placed = client_->layout().units[unit].flat.parameters()[parameter];
  const DType full = client_->layout().units[unit].full_dtype();
  const bool is_fp64 = full == DType::kFp64;
  if (values.dtype() != full) {
    return absl::InvalidArgumentError(absl::StrCat("gradient of '", placed.spec.name, "' is in ",
                                                   Name(values.dtype()), ", the parameter in ",
                                                   Name(full)));
  }
  if (slots_->gradient(unit).begun && slots_->gradient(unit).on_device) {
    return absl::FailedPreconditionError(absl::StrCat(
        "unit '", client_->UnitName(unit), "' has a gradient on its GPU that is not reduced yet"));
  }
  UnitGradient& gradient = slots_->gradient(unit);
  RETURN_IF_ERROR(Begin(unit));
  // The first contribution overwrites what another unit left in the slot.
  const bool add = gradient.contributed[parameter] != 0;
  gradient.contributed[parameter] = 1;
  slots_->SetTouched(unit, parameter, true);
  if (IsHalf(gradient.dtype)) {
    uint16_t* slot = reinterpret_cast<uint16_t*>(slots_->Slot(unit)) + placed.offset_elements;
    if (is_fp64) {
      StoreHalf(gradient.dtype, values.as<double>(), add, slot);
    } else {
      StoreHalf(gradient.dtype, values.as<float>(), add, slot);
    }
    return absl::OkStatus();
  }
  const Values slot = slots_->ValuesOf(unit, placed);
  if (!add && placed.numel > 0) memcpy(slot.data(), values.data(), values.size_bytes());
  if (!add) return absl::OkStatus();
  if (is_fp64) {
    host::Accumulate(slot.as<double>().data(), values.as<double>().data(), placed.numel);
  } else {
    host::Accumulate(slot.as<float>().data(), values.as<float>().data(), placed.numel);
  }
  return absl::OkStatus();
}

// Alignment gaps, the tail and parameters without a contribution: a slot serves many units, so what
// this one does not write would be another's old gradient. Frozen parameters too if a hook sees
// them; no reduction reads those.
void GradientReducer::ForEachUncovered(int unit,
                                       absl::FunctionRef<void(int64_t, int64_t)> zero) const {
  int64_t covered = 0;
  const UnitLayout& unit_layout = client_->layout().units[unit];
  const std::vector<PlacedParameter>& parameters = unit_layout.flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    // No reduction reads frozen parameters, so their gap need not be cleared.
    const bool unread = !parameters[p].spec.requires_grad && !hook(unit).before;
    if (!slots_->gradient(unit).contributed[p] && !unread) continue;
    zero(covered, parameters[p].offset_elements);
    covered = parameters[p].offset_elements + parameters[p].numel;
  }
  zero(covered, unit_layout.shards.padded_numel());
}

void GradientReducer::ZeroUncovered(int unit, DType dtype) {
  std::byte* slot = slots_->Slot(unit);
  ForEachUncovered(unit, [&](int64_t begin, int64_t end) {
    memset(slot + begin * SizeBytes(dtype), 0, (end - begin) * SizeBytes(dtype));
  });
}

absl::Status GradientReducer::FinishSlot(int unit) {
  const UnitGradient& gradient = slots_->gradient(unit);
  // The whole slot must be numbers: padding counts in the finite-check.
  ZeroUncovered(unit, gradient.dtype);
  if (IsHalf(gradient.dtype)) return absl::OkStatus();
  const Values slot = slots_->Whole(unit);
  if (hook(unit).before) {
    // A hook's error leaves the gradient begun. The step cannot be taken then.
    RETURN_IF_ERROR(hook(unit).before(unit, slot));
    // The hook may have written to the gaps.
    ZeroUncovered(unit, gradient.dtype);
  }
  if (IsHalf(gradient.travels_in) && slot.dtype() == DType::kFp64) {
    CompressInPlace(gradient.travels_in, slot.as<double>());
  } else if (IsHalf(gradient.travels_in)) {
    CompressInPlace(gradient.travels_in, slot.as<float>());
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> GradientReducer::FinishDeviceSlot(int unit) {
  const DType dtype = slots_->gradient(unit).dtype;
  std::byte* slot = slots_->DeviceSlot(unit);
  ForEachUncovered(unit, [&](int64_t begin, int64_t end) {
    client_->memory().kernels->Clear(slot + begin * SizeBytes(dtype),
                                     (end - begin) * SizeBytes(dtype));
  });
  return RecordGradientEvent(client_);
}

absl::Status GradientReducer::Reduce(int unit) {
  RETURN_IF_ERROR(client_->CheckUnit(unit));
  // With offload there is one sum in host memory, which would be overwritten.
  UnitGradient& gradient = slots_->gradient(unit);
  if (gradient.reduced && client_->options().config.cpu_offload) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", client_->UnitName(unit),
                     "' was reduced since the last step already; with cpu_offload, ",
                     "gradients are accumulated before they are reduced"));
  }
  RETURN_IF_ERROR(Begin(unit));
  // A rank without a gradient of its own takes part with zeros: the others wait for it there.
  Op op = OpOf(OpKind::kReduce, unit);
  if (gradient.on_device) {
    ASSIGN_OR_RETURN(op.array_or_event, FinishDeviceSlot(unit));
  } else {
    RETURN_IF_ERROR(FinishSlot(unit));
  }
  op.slot_dtype = static_cast<uint32_t>(gradient.travels_in);
  op.gradient_on_device = gradient.on_device ? 1 : 0;
  // From here on the slot is the executor's, until it counts the reduction.
  RETURN_IF_ERROR(slots_->Submit(op));
  gradient.begun = gradient.on_device = false;
  gradient.reduced = true;
  gradient.after_hook_ran = false;
  gradient.contributed.assign(gradient.contributed.size(), 0);
  return absl::OkStatus();
}

absl::Status GradientReducer::RunAfterHooks() {
  for (int unit = 0; unit < client_->num_units(); ++unit) {
    const UnitGradient& gradient = slots_->gradient(unit);
    if (hook(unit).after && gradient.reduced && !gradient.after_hook_ran)
      RETURN_IF_ERROR(RunAfterHook(unit));
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::RunAfterHook(int unit) {
  const UnitLayout& layout = client_->layout().units[unit];
  const ElementRange slice = layout.shards.RangeOf(Rank(client_->rank()));
  // The executor puts the reduced shard into the slot, where the hook may change it.
  RETURN_IF_ERROR(slots_->Read(OpOf(OpKind::kReadGradientShard, unit)));
  RETURN_IF_ERROR(hook(unit).after(unit, slots_->Shard(unit)));
  const auto zero = [&](int64_t begin, int64_t end) {
    const Values gap = slots_->ValuesOf(unit, begin, end - begin);
    memset(gap.data(), 0, gap.size_bytes());
  };
  int64_t covered = slice.begin;  // Padding counts in no norm.
  for (const PlacedParameter& parameter : layout.flat.parameters()) {
    const ElementRange part =
        Intersect({parameter.offset_elements, parameter.offset_elements + parameter.numel}, slice);
    if (part.empty()) continue;
    zero(covered, part.begin);
    covered = part.end;
  }
  zero(covered, slice.end);
  slots_->gradient(unit).after_hook_ran = true;
  return slots_->Submit(OpOf(OpKind::kWriteGradient, unit));
}

}  // namespace tessera
