#include "worker/engine/gradient_reductions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "layout/reduced_parts.h"

namespace tessera {

GradientReductions::GradientReductions(EngineContext* context, EarlyUpdates* early)
    : context_(*context),
      early_(*early),
      reduced_(context->num_units(), false),
      stats_(context->num_units()) {
  for (const UnitLayout& unit : context_.options.layout->units) {
    reduced_parts_.push_back(ReducedParts(unit));
    std::vector<ElementRange>& slices = slices_.emplace_back();
    for (int rank = 0; rank < context_.options.config->world_size; ++rank) {
      slices.push_back(unit.shards.RangeOf(Rank(rank)));
    }
  }
}

absl::Status GradientReductions::Reduce(const Op& op) {
  const RankEngineOptions& options = context_.options;
  const int unit = op.unit;
  RETURN_IF_ERROR(context_.CheckUnit(unit));
  // A number from shared memory. The cast is checked by casting back.
  const DType dtype = static_cast<DType>(op.slot_dtype);
  const bool on_device = op.gradient_on_device != 0;
  if (op.slot_dtype != static_cast<uint32_t>(dtype) ||
      (dtype != context_.FullDTypeOf(unit) && !IsHalf(dtype))) {
    return absl::InvalidArgumentError(absl::StrCat("unit '", context_.UnitName(unit),
                                                   "': gradient of dtype number ", op.slot_dtype));
  }
  if (on_device && !context_.OnDevice()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unit '", context_.UnitName(unit), "': gradient on a device, and the rank has none"));
  }
  // Refused before it is issued: no other rank has heard of it then.
  RETURN_IF_ERROR(context_.Transit(unit, UnitEvent::kReduce));
  const int64_t numel =
      CountIn(reduced_parts_[unit], {0, context_.UnitOf(unit).shards.padded_numel()});
  RETURN_IF_ERROR(context_.order.Issue(OpKind::kReduce, unit, numel, dtype));
  // The second reduction of a unit in one step is added to the first.
  // Decided here and captured: `reduced_` is the engine's thread's, not the stream's.
  const bool accumulate = reduced_[unit];
  reduced_[unit] = true;
  // The sequence of the operation just issued.
  const int64_t step = context_.order.step() + 1, sequence = context_.order.sequence() - 1;
  const int64_t number =
      options.recorder->Enqueued(step, sequence, OpKind::kReduce, unit, numel * SizeBytes(dtype));
  // Counted before it is enqueued, so that Leave sees it from the moment that the ring does not.
  on_stream_.fetch_add(1);
  options.post_backward->Enqueue([this, op, dtype, accumulate, number] {
    ReduceOnStream(op, dtype, accumulate, number);
    on_stream_.fetch_sub(1);
  });
  if (!options.config->optimizer_in_backward) return absl::OkStatus();
  const int64_t update = options.recorder->Enqueued(step, sequence, OpKind::kUpdate, unit, 0);
  // After the reduction, in stream order: it reads the reduced gradient.
  options.post_backward->Enqueue([this, unit, assumed = early_.Plan(unit), update]() mutable {
    early_.Update(unit, std::move(assumed), update);
  });
  return absl::OkStatus();
}

void GradientReductions::ReduceOnStream(const Op& op, DType dtype, bool accumulate,
                                        int64_t number) {
  const RankEngineOptions& options = context_.options;
  const int unit = op.unit;
  // After an error the stream only drains. The communicator is broken already.
  // The slot is not released: the trainer learns of the error by the end of the epoch.
  if (!context_.interrupt.stream_status().ok()) return;
  options.recorder->Started(number);
  (void)FaultPoint("reduce.started");
  absl::Status status = context_.OnDevice() ? AwaitGradient(op, dtype) : absl::OkStatus();
  if (status.ok()) status = ReduceOnce(unit, dtype, accumulate);
  if (!status.ok()) {
    status = Annotate(status, absl::StrCat("reduce unit '", context_.UnitName(unit), "'"));
    context_.interrupt.StreamFailed(status);
    // The engine's thread may wait for a release that will not come now.
    options.gate->Interrupt(status);
    return;
  }
  options.recorder->Done(number);
  // Only now may the trainer write the slot again: peers read it during the reduction.
  context_.trainer.ReleaseSlot(unit);
}

absl::Status GradientReductions::AwaitGradient(const Op& op, DType dtype) {
  if (op.gradient_on_device == 0) return BringToDevice(op.unit, dtype);
  if (op.array_or_event == 0) return absl::OkStatus();
  // The patience of a collective: the peers wait for this reduction.
  return context_.options.gradient_events->Await(
      op.array_or_event - 1, SteadyNow() + context_.options.config->collective_timeout,
      [this] { return context_.interrupt.is_raised(); });
}

// The trainer wrote its gradient to host memory. The kernels read the device's.
absl::Status GradientReductions::BringToDevice(int unit, DType dtype) {
  const RankEngineOptions& options = context_.options;
  const int64_t offset =
      context_.MemoryOf(unit).gradient_slot * options.memory->gradient_slot_bytes();
  options.stream_kernels->Copy(options.device_gradients + offset, context_.OwnSlot(unit),
                               context_.UnitOf(unit).shards.padded_numel() * SizeBytes(dtype));
  return options.stream_kernels->Finish();
}

absl::Status GradientReductions::ReduceOnce(int unit, DType dtype, bool accumulate) {
  if (context_.options.config->fake_reduce_scatter) {
    RETURN_IF_ERROR(FakeReduction(unit));
  } else {
    RETURN_IF_ERROR(ReduceMapped(unit, dtype, accumulate));
  }
  return KeepLowPrecision(unit, dtype);
}

absl::Status GradientReductions::ReduceMapped(int unit, DType dtype, bool accumulate) {
  const RankEngineOptions& options = context_.options;
  const int64_t offset =
      context_.MemoryOf(unit).gradient_slot * options.memory->gradient_slot_bytes();
  std::vector<const void*> sends;
  for (const std::byte* gradients : options.gradients_by_rank)
    // Ranks of other hosts have no address here. The communicator never reads theirs.
    sends.push_back(gradients == nullptr ? nullptr : gradients + offset);
  // The mean of the ranks. Divisors and weights are known at the step only, and come with its
  // scale.
  return options.communicator->ReduceScatterMapped(
      sends, slices_[unit], reduced_parts_[unit], dtype, 1.0 / options.config->world_size,
      accumulate, {Gradient(unit), context_.FullDTypeOf(unit)}, &stats_[unit]);
}

absl::Status GradientReductions::FakeReduction(int unit) {
  RankKernels* kernels = context_.options.stream_kernels;
  kernels->Clear(Gradient(unit), context_.FullBytes(unit, context_.SliceOf(unit).size()));
  stats_[unit] = host::GradientStats();
  return kernels->Finish();
}

absl::Status GradientReductions::KeepLowPrecision(int unit, DType dtype) {
  const RankEngineOptions& options = context_.options;
  if (!options.config->keep_low_precision_gradients || !IsHalf(dtype)) return absl::OkStatus();
  // Here, not when the trainer reads it: the norm and the update must be of the rounded values.
  options.stream_kernels->RoundToHalf(dtype, ReducedValues(unit));
  return MeasureReduced(unit, options.stream_kernels);  // Rounding may have made infinities.
}

absl::Status GradientReductions::Await() {
  // The synchronisation orders what the stream wrote, statistics included, before what follows.
  context_.options.post_backward->Synchronize();
  return context_.interrupt.stream_status();
}

std::byte* GradientReductions::Gradient(int unit) const {
  return context_.options.state + context_.options.memory->ReducedGradientOffsetBytes() +
         context_.MemoryOf(unit).shard_offset_bytes;
}

Values GradientReductions::ReducedValues(int unit) const {
  return {Gradient(unit), context_.SliceOf(unit).size(), context_.FullDTypeOf(unit)};
}

absl::Status GradientReductions::MeasureReduced(int unit, RankKernels* kernels) {
  kernels->Measure(ReducedValues(unit));
  return kernels->TakeStats(&stats_[unit]);
}

absl::Status GradientReductions::SetFromSlot(int unit) {
  RankKernels* kernels = context_.options.kernels;
  const ElementRange slice = context_.SliceOf(unit);
  for (const ElementRange& part : reduced_parts_[unit]) {  // The rest stays 0.
    const ElementRange own = Intersect(part, slice);
    if (own.empty()) continue;
    kernels->Copy(Gradient(unit) + context_.FullBytes(unit, own.begin - slice.begin),
                  context_.OwnSlot(unit) + context_.FullBytes(unit, own.begin),
                  context_.FullBytes(unit, own.size()));
  }
  RETURN_IF_ERROR(MeasureReduced(unit, kernels));
  reduced_[unit] = true;
  // An early update was made of the gradient that this one replaces.
  early_.Forget(unit);
  return absl::OkStatus();
}

void GradientReductions::Forget(int unit) {
  reduced_[unit] = false;
  early_.Forget(unit);
}

void GradientReductions::ForgetAll() {
  for (int unit = 0; unit < context_.num_units(); ++unit) Forget(unit);
}

absl::Status GradientReductions::Measure(double norm_p, Vote* vote) {
  for (int unit = 0; unit < context_.num_units(); ++unit) {
    if (!reduced_[unit]) continue;  // None of its parameters has a gradient.
    // Replicas of a slice have the same gradient; one of them counts.
    if (!context_.IsReplica(unit)) vote->norm_part += stats_[unit].sum_of_squares;
    if (stats_[unit].non_finite && vote->first_non_finite_unit < 0)
      vote->first_non_finite_unit = unit;
    // The same units on all ranks, or the vote fails.
    vote->reduced_units_hash = vote->reduced_units_hash * 31 + unit + 1;
  }
  if (norm_p == 2) return absl::OkStatus();
  ASSIGN_OR_RETURN(vote->norm_part, NormPart(norm_p));
  return absl::OkStatus();
}

absl::StatusOr<double> GradientReductions::NormPart(double p) {
  const RankEngineOptions& options = context_.options;
  for (const ShardSegment& segment : context_.optimizer.segments()) {
    if (!segment.requires_grad || !reduced_[segment.unit] || context_.IsReplica(segment.unit))
      continue;
    const std::byte* gradient = options.state + options.memory->ReducedGradientOffsetBytes() +
                                segment.state_begin_elements * SizeBytes(segment.dtype);
    // By parameter, not by unit: the sum's order is part of the result's bits (docs/adr/0037).
    options.kernels->AddToNormPart(ConstValues(gradient, segment.numel, segment.dtype), p);
  }
  return options.kernels->TakeNormPart();
}

}  // namespace tessera
