#include "worker/engine/slot_reads.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<const std::byte*> SlotReads::ShardToRead(const Op& op, bool gradient) const {
  const int unit = op.unit;
  if (!context_.initialized() || (gradient && !reductions_.is_reduced(unit))) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", context_.UnitName(unit), "': ", OpName(op.kind), " without values"));
  }
  if (gradient) return reductions_.Gradient(unit);
  // The number comes from shared memory.
  if (op.array_or_event > static_cast<uint32_t>(StateArray::kSecondMoment))
    return absl::InvalidArgumentError(
        absl::StrCat(OpName(op.kind), " of array ", op.array_or_event));
  return context_.optimizer.Array(static_cast<StateArray>(op.array_or_event),
                                  context_.order.step() % 2) +
         context_.MemoryOf(unit).shard_offset_bytes;
}

absl::Status SlotReads::Read(const Op& op) {
  const RankEngineOptions& options = context_.options;
  const OpKind kind = op.kind;
  const int unit = op.unit;
  RETURN_IF_ERROR(context_.CheckUnit(unit));
  ASSIGN_OR_RETURN(const std::byte* shard, ShardToRead(op, kind == OpKind::kReadGradient));
  const ShardMap& shards = context_.UnitOf(unit).shards;
  const int64_t number =
      context_.EnqueueRecord(kind, unit, context_.FullBytes(unit, shards.padded_numel()));
  RETURN_IF_ERROR(reductions_.Await());
  RETURN_IF_ERROR(
      context_.order.Issue(kind, unit, shards.padded_numel(), context_.FullDTypeOf(unit)));
  options.recorder->Started(number);
  const int64_t shard_bytes = context_.FullBytes(unit, shards.shard_numel());
  std::byte* const slot = context_.OwnSlot(unit);
  // The communicator cannot read the GPU's memory: the shard goes through its part of the slot.
  if (!state_is_addressable_) {
    std::byte* own = slot + context_.FullBytes(unit, context_.SliceOf(unit).begin);
    options.kernels->Copy(own, shard, shard_bytes);
    RETURN_IF_ERROR(options.kernels->Finish());
    shard = own;
  }
  RETURN_IF_ERROR(gathers_.Holders(unit).AllGather(shard, slot, shard_bytes));
  options.recorder->Done(number);
  // From here on the trainer may read the slot.
  context_.trainer.ReleaseSlot(unit);
  return absl::OkStatus();
}

absl::Status SlotReads::ReadShard(const Op& op) {
  const int unit = op.unit;
  RETURN_IF_ERROR(context_.CheckUnit(unit));
  ASSIGN_OR_RETURN(const std::byte* shard, ShardToRead(op, op.kind == OpKind::kReadGradientShard));
  RETURN_IF_ERROR(reductions_.Await());
  const ElementRange slice = context_.SliceOf(unit);
  context_.options.kernels->Copy(context_.OwnSlot(unit) + context_.FullBytes(unit, slice.begin),
                                 shard, context_.FullBytes(unit, slice.size()));
  RETURN_IF_ERROR(context_.options.kernels->Finish());
  context_.trainer.ReleaseSlot(unit);
  return absl::OkStatus();
}

absl::Status SlotReads::Exchange(const Op& op) {
  const RankEngineOptions& options = context_.options;
  const int unit = op.unit;
  RETURN_IF_ERROR(context_.CheckUnit(unit));
  const bool is_broadcast = op.kind == OpKind::kBroadcast;
  const DType dtype = is_broadcast ? context_.FullDTypeOf(unit) : DType::kFp32;
  // So many that all ranks' parts fit into one slot.
  const int64_t of_rank = options.memory->ExchangeNumel(options.config->world_size);
  const int64_t numel = is_broadcast ? context_.UnitOf(unit).shards.padded_numel()
                                     : of_rank * options.config->world_size;
  const int64_t number =
      options.recorder->Enqueued(context_.order.StepUnderWay(), context_.order.sequence(), op.kind,
                                 unit, numel * SizeBytes(dtype));
  RETURN_IF_ERROR(reductions_.Await());
  RETURN_IF_ERROR(context_.order.Issue(op.kind, unit, numel, dtype));
  options.recorder->Started(number);
  std::byte* slot = context_.OwnSlot(unit);
  if (is_broadcast) {
    RETURN_IF_ERROR(options.communicator->Broadcast(slot, numel * SizeBytes(dtype), /*root=*/0));
  } else {
    const int64_t bytes = of_rank * SizeBytes(dtype);
    RETURN_IF_ERROR(
        options.communicator->AllGather(slot + options.rank.value() * bytes, slot, bytes));
  }
  options.recorder->Done(number);
  context_.trainer.ReleaseSlot(unit);
  return absl::OkStatus();
}

}  // namespace tessera
