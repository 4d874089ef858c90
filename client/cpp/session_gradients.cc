// Session: gradients, which travel through the rank's gradient slots.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cpp/device_gradients.h"
#include "client/cpp/session.h"
#include "worker/device/host/kernels.h"

namespace tessera {
namespace {

// dst (+)= src, rounding to `dtype`, bf16 or fp16. In pieces that stay in the first-level cache.
void StoreHalf(DType dtype, absl::Span<const double> src, bool add, uint16_t* dst) {
  constexpr int64_t kPiece = 1024;
  float widened[kPiece];
  double piece[kPiece];
  for (size_t at = 0; at < src.size(); at += kPiece) {
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

// Forward, piece by piece: what is written lies in pieces that were read.
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

std::byte* Session::Slot(int unit) const {
  return memory_.gradients.data() + plan_.units()[unit].gradient_slot * plan_.gradient_slot_bytes();
}

std::byte* Session::DeviceSlot(int unit) const {
  return memory_.device_gradients.data_as<std::byte>() +
         plan_.units()[unit].gradient_slot * plan_.gradient_slot_bytes();
}

Values Session::SlotValues(int unit, const PlacedParameter& placed) const {
  return SlotValues(unit, placed.offset_elements, placed.numel);
}

Values Session::SlotValues(int unit, int64_t begin_elements, int64_t count) const {
  const DType dtype = full_dtype(unit);
  return {Slot(unit) + begin_elements * SizeBytes(dtype), count, dtype};
}

int Session::HolderOfSlot(int unit) const {
  const int user = slot_user_[plan_.units()[unit].gradient_slot];
  return user >= 0 && user != unit && gradients_[user].begun ? user : -1;
}

// Waits until no reduction reads the unit's slot any more.
absl::Status Session::AwaitSlot(int unit) {
  const int user = slot_user_[plan_.units()[unit].gradient_slot];
  if (user < 0) return absl::OkStatus();
  if (const int holder = HolderOfSlot(unit); holder >= 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "unit '", UnitName(unit), "' shares its gradient slot with unit '", UnitName(holder),
        "', whose gradient is not reduced yet; accumulating without reducing needs gradient_slots "
        "= 0"));
  }
  const std::atomic<uint32_t>& reduced = page()->units[user].reduced;
  const uint32_t submitted = gradients_[user].submitted;
  return Await([&] { return absl::StrCat("the gradient slot of unit '", UnitName(unit), "'"); },
               [&] { return reduced.load(std::memory_order_acquire) == submitted; });
}

absl::Status Session::BeginGradient(int unit) {
  UnitGradient& gradient = gradients_[unit];
  if (gradient.begun) return absl::OkStatus();
  RETURN_IF_ERROR(CheckNotClipped("a gradient"));
  RETURN_IF_ERROR(AwaitSlot(unit));
  slot_user_[plan_.units()[unit].gradient_slot] = unit;
  const DType full = full_dtype(unit);
  gradient.travels_in =
      precisions_[unit] == Precision::kFull ? full : plan_.units()[unit].reduce_dtype;
  gradient.travels_in = hooks_[unit].compress.value_or(gradient.travels_in);
  if (!IsHalf(gradient.travels_in)) gradient.travels_in = full;
  // Hooks see full precision, and round once.
  gradient.dtype = hooks_[unit].compress || hooks_[unit].before ? full : gradient.travels_in;
  gradient.begun = true;
  return absl::OkStatus();
}

absl::Status Session::CheckTakesGradient(int unit, int parameter, int64_t numel) const {
  const std::vector<PlacedParameter>& parameters = layout_.units[unit].flat.parameters();
  if (parameter < 0 || parameter >= static_cast<int>(parameters.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("unit '", UnitName(unit), "' has no parameter ", parameter));
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

void Session::Touch(int unit, int parameter) {
  touched()[plan_.units()[unit].first_parameter + parameter] = std::byte{1};
}

absl::Status Session::AddGradient(int unit, int parameter, ConstValues values) {
  RETURN_IF_ERROR(CheckUnit(unit));
  RETURN_IF_ERROR(CheckTakesGradient(unit, parameter, static_cast<int64_t>(values.size())));
  const PlacedParameter& placed = layout_.units[unit].flat.parameters()[parameter];
  const bool is_fp64 = full_dtype(unit) == DType::kFp64;
  if (values.dtype() != full_dtype(unit)) {
    return absl::InvalidArgumentError(absl::StrCat("gradient of '", placed.spec.name, "' is in ",
                                                   Name(values.dtype()), ", the parameter in ",
                                                   Name(full_dtype(unit))));
  }
  if (gradients_[unit].begun && gradients_[unit].on_device) {
    return absl::FailedPreconditionError(absl::StrCat(
        "unit '", UnitName(unit), "' has a gradient on its GPU that is not reduced yet"));
  }
  UnitGradient& gradient = gradients_[unit];
  RETURN_IF_ERROR(BeginGradient(unit));
  const bool add = gradient.contributed[parameter] != 0;
  gradient.contributed[parameter] = 1;
  Touch(unit, parameter);
  if (IsHalf(gradient.dtype)) {
    uint16_t* slot = reinterpret_cast<uint16_t*>(Slot(unit)) + placed.offset_elements;
    if (is_fp64) {
      StoreHalf(gradient.dtype, values.as<double>(), add, slot);
    } else {
      StoreHalf(gradient.dtype, values.as<float>(), add, slot);
    }
    return absl::OkStatus();
  }
  const Values slot = SlotValues(unit, placed);
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
void Session::ForEachUncovered(int unit, absl::FunctionRef<void(int64_t, int64_t)> zero) const {
  int64_t covered = 0;
  const UnitLayout& unit_layout = layout_.units[unit];
  const std::vector<PlacedParameter>& parameters = unit_layout.flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    const bool unread = !parameters[p].spec.requires_grad && !hooks_[unit].before;
    if (!gradients_[unit].contributed[p] && !unread) continue;
    zero(covered, parameters[p].offset_elements);
    covered = parameters[p].offset_elements + parameters[p].numel;
  }
  zero(covered, unit_layout.shards.padded_numel());
}

void Session::ZeroUncovered(int unit, DType dtype) {
  std::byte* slot = Slot(unit);
  ForEachUncovered(unit, [&](int64_t begin, int64_t end) {
    memset(slot + begin * SizeBytes(dtype), 0, (end - begin) * SizeBytes(dtype));
  });
}

absl::Status Session::SubmitSlot(OpKind kind, int unit) {
  Op op;
  op.kind = kind;
  op.unit = unit;
  return SubmitSlot(op);
}

absl::Status Session::SubmitSlot(Op op) {
  const int unit = op.unit;
  RETURN_IF_ERROR(Submit(op));
  ++gradients_[unit].submitted;
  return absl::OkStatus();
}

bool Session::within_step() const {
  return std::any_of(gradients_.begin(), gradients_.end(),
                     [](const UnitGradient& unit) { return unit.begun || unit.reduced; });
}

// Makes what will be reduced of what was added.
absl::Status Session::FinishSlot(int unit) {
  const UnitGradient& gradient = gradients_[unit];
  ZeroUncovered(unit, gradient.dtype);
  if (IsHalf(gradient.dtype)) return absl::OkStatus();
  const Values slot = SlotValues(unit, 0, layout_.units[unit].shards.padded_numel());
  if (hooks_[unit].before) {
    RETURN_IF_ERROR(hooks_[unit].before(unit, slot));
    ZeroUncovered(unit, gradient.dtype);
  }
  if (IsHalf(gradient.travels_in) && slot.dtype() == DType::kFp64) {
    CompressInPlace(gradient.travels_in, slot.as<double>());
  } else if (IsHalf(gradient.travels_in)) {
    CompressInPlace(gradient.travels_in, slot.as<float>());
  }
  return absl::OkStatus();
}

absl::Status Session::Reduce(int unit) {
  RETURN_IF_ERROR(CheckUnit(unit));
  UnitGradient& gradient = gradients_[unit];
  if (gradient.reduced && options_.config.cpu_offload) {
    return absl::FailedPreconditionError(absl::StrCat(
        "unit '", UnitName(unit), "' was reduced since the last step already; with cpu_offload, ",
        "gradients are accumulated before they are reduced"));
  }
  RETURN_IF_ERROR(BeginGradient(unit));
  Op op;
  if (gradient.on_device) {
    ASSIGN_OR_RETURN(op.array, DeviceGradients(this).FinishSlot(unit));
  } else {
    RETURN_IF_ERROR(FinishSlot(unit));
  }
  op.kind = OpKind::kReduce;
  op.unit = unit;
  op.slot_dtype = static_cast<uint32_t>(gradient.travels_in);
  op.gradient_on_device = gradient.on_device ? 1 : 0;
  RETURN_IF_ERROR(SubmitSlot(op));
  gradient.begun = gradient.on_device = false;
  gradient.reduced = true;
  gradient.after_hook_ran = false;
  gradient.contributed.assign(gradient.contributed.size(), 0);
  return absl::OkStatus();
}

absl::Status Session::CheckNotClipped(absl::string_view what) const {
  if (!clipping_.done) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what,
                   " after ClipGradNorm, which the step follows: clip behind the last "
                   "backward of a step"));
}

absl::StatusOr<double> Session::ClipGradNorm(double max_norm, double p,
                                             const StepOptions& options) {
  RETURN_IF_ERROR(CheckStepOptions(options));
  if (!(max_norm > 0))
    return absl::InvalidArgumentError(
        absl::StrCat("clipping: max_norm ", max_norm, " is not above 0"));
  if (!(p > 0))
    return absl::InvalidArgumentError(absl::StrCat("clipping: p ", p, " is not above 0"));
  if (options_.config.optimizer_in_backward) {
    return absl::FailedPreconditionError(
        "clipping needs all gradients, and config.optimizer_in_backward uses each at once");
  }
  RETURN_IF_ERROR(Vote(OpKind::kTally, options, p, max_norm));
  const OpResult& result = page()->result;
  absl::Status status = ResultStatus();
  if (status.ok() && !(result.clip_coefficient > 0)) {
    status = absl::FailedPreconditionError(
        absl::StrCat("clipping: the gradient's norm by p = ", p, " is ", result.gradient_norm));
  }
  clipping_.done = true;
  if (result.non_finite != 0 && options.skip_non_finite) {  // The step finds it too.
    agreed_error_ = false;
    return std::nan("");
  }
  if (!status.ok()) {
    RETURN_IF_ERROR(DropGradients());
    agreed_error_ = true;  // All ranks have it.
    return status;
  }
  clipping_.coefficient *= result.clip_coefficient;
  return result.gradient_norm;
}

absl::Status Session::RegisterCommHook(int unit, CommHook hook) {
  if (unit != -1) RETURN_IF_ERROR(CheckUnit(unit));
  if (hook.empty()) return absl::InvalidArgumentError("a communication hook that does nothing");
  if (hook.compress && *hook.compress != DType::kFp32 && !IsHalf(*hook.compress)) {
    return absl::InvalidArgumentError(absl::StrCat("communication hook: compresses to ",
                                                   Name(*hook.compress), ": fp32, bf16 or fp16"));
  }
  if (within_step()) {
    return absl::FailedPreconditionError("a communication hook is registered between steps");
  }
  const int begin = unit == -1 ? 0 : unit, end = unit == -1 ? num_units() : unit + 1;
  for (int u = begin; u < end; ++u) {
    if (hooks_[u].empty()) continue;
    return absl::AlreadyExistsError(
        absl::StrCat("unit '", UnitName(u), "' has a communication hook already"));
  }
  std::fill(hooks_.begin() + begin, hooks_.begin() + end, hook);
  return absl::OkStatus();
}

absl::Status Session::RunAfterHook(int unit) {
  const UnitLayout& layout = layout_.units[unit];
  const ElementRange slice = layout.shards.RangeOf(Rank(rank()));
  RETURN_IF_ERROR(ClaimSlot(unit));
  RETURN_IF_ERROR(SubmitSlot(OpKind::kReadGradientShard, unit));
  RETURN_IF_ERROR(AwaitSlot(unit));
  RETURN_IF_ERROR(hooks_[unit].after(unit, SlotValues(unit, slice.begin, slice.size())));
  const auto zero = [&](int64_t begin, int64_t end) {
    const Values gap = SlotValues(unit, begin, end - begin);
    memset(gap.data(), 0, gap.size_bytes());
  };
  int64_t covered = slice.begin;  // What belongs to no parameter counts in no norm.
  for (const PlacedParameter& parameter : layout.flat.parameters()) {
    const ElementRange part =
        Intersect({parameter.offset_elements, parameter.offset_elements + parameter.numel}, slice);
    if (part.empty()) continue;
    zero(covered, part.begin);
    covered = part.end;
  }
  zero(covered, slice.end);
  gradients_[unit].after_hook_ran = true;
  return SubmitSlot(OpKind::kWriteGradient, unit);
}

}  // namespace tessera
