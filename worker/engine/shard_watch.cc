#include "worker/engine/shard_watch.h"

#include <isa-l/crc64.h>

#include "job/field_limits.h"

namespace tessera {
namespace {

// A step and a unit in one word, which is not 0.
constexpr int kUnitBits = 15;
static_assert(kMaxUnits < 1 << kUnitBits);
int64_t WordOf(int64_t step, int unit) { return (step + 1) << kUnitBits | unit; }

}  // namespace

uint64_t ShardWatch::Sum(int unit, int64_t step) const {
  const UnitMemory& placed = memory_->units()[unit];
  const int64_t size_bytes =
      layout_->units[unit].shards.shard_numel() * SizeBytes(placed.full_dtype);
  std::vector<StateArray> arrays = MomentsOf(config_->optimizer);
  arrays.push_back(StateArray::kParameter);
  uint64_t sum = 0;
  for (const StateArray array : arrays) {
    const std::byte* shard = state_ + memory_->StateOffsetBytes(array, static_cast<int>(step % 2)) +
                             placed.shard_offset_bytes;
    // A checksum, not a hash: it finds flipped bits, not an attack.
    sum = crc64_ecma_refl(sum, reinterpret_cast<const unsigned char*>(shard), size_bytes);
  }
  return sum;
}

void ShardWatch::Written(int64_t step) {
  const int interval = config_->shard_check_interval_steps;
  if (interval == 0 || step % interval != 0) return;
  // In the executor's own memory: a flip in the keeper's cannot change both alike.
  sums_.resize(memory_->units().size());
  for (size_t unit = 0; unit < sums_.size(); ++unit)
    sums_[unit] = Sum(static_cast<int>(unit), step);
  watched_step_ = step;
}

int ShardWatch::FindChanged(int64_t step) const {
  const int64_t found = found_->load();
  // Found before, by this executor or a predecessor: the sums that show it may be gone.
  if (found >> kUnitBits == step + 1) return static_cast<int>(found & ((1 << kUnitBits) - 1));
  // A step that was not watched has no sums to compare with.
  if (step != watched_step_) return -1;
  for (size_t unit = 0; unit < sums_.size(); ++unit) {
    if (Sum(static_cast<int>(unit), step) == sums_[unit]) continue;
    // Kept before the vote: a successor of an executor that dies now has no sums to find it by.
    found_->store(WordOf(step, static_cast<int>(unit)));
    return static_cast<int>(unit);
  }
  return -1;
}

}  // namespace tessera
