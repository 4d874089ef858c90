#include "worker/keeper/frozen_state.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "checkpoint/safetensors/crc32.h"
#include "worker/executor/executor_memory.h"

namespace tessera {
namespace {

// How often a wait looks whether it was cancelled.
constexpr absl::Duration kSlice = absl::Milliseconds(50);

absl::Status Refusal(const v1::LiveRange& range) {
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", range.rank(), " has no elements ", range.begin_elements(), " + ", range.numel(),
      " of array ", range.array(), " of parameter ", range.parameter(), " here"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FrozenState>> FrozenState::Create(const JobRegions& regions,
                                                                 int64_t step) {
  RETURN_IF_ERROR(regions.CheckHasValues());
  auto frozen = std::unique_ptr<FrozenState>(new FrozenState());
  frozen->step_ = step;
  frozen->layout_ = regions.layout();
  frozen->local_ = regions.local();
  ASSIGN_OR_RETURN(frozen->memory_, JobMemory::Create(regions.layout(), regions.config()));
  std::vector<int> all(frozen->memory_.num_parameters());
  std::iota(all.begin(), all.end(), 0);
  ASSIGN_OR_RETURN(frozen->parameters_, LiveTensors(regions.layout(), regions.config().optimizer,
                                                    all, /*moments=*/false));
  // Copies and mappings of its own: the job may be dropped while a successor reads.
  // Writable, since a wait counts itself as a sleeper in the page.
  ASSIGN_OR_RETURN(frozen->group_, Mapping::CreateWhole(regions.group_fd(), Access::kReadWrite));
  frozen->counts_ =
      UpdateCounts(frozen->group_.data() + kGroupPageBytes, frozen->memory_.num_parameters());
  if (frozen->local_.Has(0)) {
    // Of rank 0 alone: its buffers are the job's for all readers (docs/adr/0044).
    ASSIGN_OR_RETURN(frozen->buffers_, regions.OpenGroup());
  }
  const auto* page = reinterpret_cast<const GroupPage*>(frozen->group_.data());
  for (int i = 0; i < frozen->local_.count(); ++i) {
    const int rank = frozen->local_.first() + i;
    ASSIGN_OR_RETURN(std::unique_ptr<MemoryReader> state, regions.OpenState(Rank(rank)));
    frozen->ranks_.push_back({std::move(state), &page->ranks[i]});
  }
  return frozen;
}

absl::Status FrozenState::CheckStands() const {
  // The copy's loads may not be done after those below, as in each reader of a seqlock.
  std::atomic_thread_fence(std::memory_order_acquire);
  // A hand-over that was cancelled lets the job train on, over what is read here.
  for (const RankState& rank : ranks_) {
    if (rank.record->applied_step.load(std::memory_order_acquire) > step_ ||
        rank.record->hold.writing.load() > step_ + 1) {
      return absl::AbortedError(absl::StrCat("the job trains on after step ", step_));
    }
  }
  return absl::OkStatus();
}

absl::Status FrozenState::Await(absl::Duration patience, absl::FunctionRef<bool()> cancelled) {
  const absl::Time deadline = SteadyNow() + patience;
  for (const RankState& rank : ranks_) {
    auto* record = const_cast<RankRecord*>(rank.record);
    while (true) {
      // Before applied_step: an update in between changes the word, so no wake-up is lost.
      const uint32_t seen = record->applied_version.value.load(std::memory_order_acquire);
      const int64_t applied = record->applied_step.load(std::memory_order_acquire);
      if (applied == step_) break;
      if (applied > step_) {
        return absl::FailedPreconditionError(
            absl::StrCat("a rank is at step ", applied, ", not at ", step_));
      }
      // The reader's end is looked for in slices: it cannot wake this wait.
      if (cancelled()) return absl::CancelledError("the reader is gone");
      const absl::Time now = SteadyNow();
      if (now >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("a rank has not completed step ", step_, ", which is decided"));
      }
      WaitForChange(&record->applied_version, seen, std::min(deadline, now + kSlice));
    }
  }
  return CheckStands();
}

v1::LiveCopied FrozenState::Progress() const {
  const auto* page = reinterpret_cast<const GroupPage*>(group_.data());
  v1::LiveCopied progress;
  progress.set_trained_step(
      page->decisions[step_ % 2].trained_step.load(std::memory_order_relaxed));
  for (int parameter = 0; parameter < memory_.num_parameters(); ++parameter)
    progress.add_update_counts(counts_.CountOf(step_, parameter));
  return progress;
}

absl::StatusOr<int64_t> FrozenState::LocateBuffer(const v1::LiveRange& range,
                                                  int64_t* element_bytes) const {
  const BufferPlacement& placement = memory_.buffers();
  // The range comes from the coordinator, and through it from a client.
  const int buffer = range.parameter();
  if (buffer < 0 || buffer >= placement.size() || range.rank() != 0 || buffers_ == nullptr)
    return Refusal(range);
  *element_bytes = SizeBits(layout_.buffers[buffer].dtype) / 8;
  const int64_t numel = placement.size_bytes(buffer) / *element_bytes;
  const int64_t begin = range.begin_elements();
  // Written so that no sum can overflow.
  if (begin < 0 || begin > numel || range.numel() < 0 || range.numel() > numel - begin)
    return Refusal(range);
  return BufferSlotsOffsetBytes(memory_, 0) + step_ % 2 * placement.bank_bytes() +
         placement.offset_bytes(buffer) + begin * *element_bytes;
}

absl::StatusOr<int64_t> FrozenState::Locate(const v1::LiveRange& range,
                                            int64_t* element_bytes) const {
  if (range.array() == v1::LIVE_STATE_ARRAY_BUFFER) return LocateBuffer(range, element_bytes);
  if (range.parameter() < 0 || range.parameter() >= static_cast<int>(parameters_.size()) ||
      !local_.Has(range.rank()) || range.array() < v1::LIVE_STATE_ARRAY_PARAMETER ||
      range.array() > v1::LIVE_STATE_ARRAY_SECOND_MOMENT) {
    return Refusal(range);
  }
  const LiveTensor& tensor = parameters_[range.parameter()];
  const UnitMemory& unit = memory_.units()[tensor.unit];
  *element_bytes = SizeBytes(unit.full_dtype);
  const auto array = static_cast<StateArray>(range.array() - v1::LIVE_STATE_ARRAY_PARAMETER);
  int64_t at = -1;
  RETURN_IF_ERROR(ForEachLiveSlice(
      layout_, {tensor}, range.rank(), range.rank() + 1, [&](const LiveSlice& slice) {
        // A wrong begin may make this negative or larger than the slice. Both are refused.
        const int64_t skip = range.begin_elements() - slice.begin_elements;
        if (skip >= 0 && skip <= slice.numel && range.numel() >= 0 &&
            range.numel() <= slice.numel - skip) {
          at = memory_.StateOffsetBytes(array, static_cast<int>(step_ % 2)) +
               unit.shard_offset_bytes + (slice.shard_begin_elements + skip) * *element_bytes;
        }
        return absl::OkStatus();
      }));
  if (at < 0) return Refusal(range);
  return at;
}

absl::StatusOr<int64_t> FrozenState::Read(const v1::LiveRange& range, int64_t done,
                                          v1::LivePiece* piece) {
  RETURN_IF_ERROR(FaultPoint("hand-over.read"));
  int64_t element_bytes = 0;
  ASSIGN_OR_RETURN(int64_t from, Locate(range, &element_bytes));
  if (done < 0 || done >= range.numel())
    return absl::InvalidArgumentError(absl::StrCat("piece at ", done, " of ", range.numel()));
  const int64_t count = std::min(range.numel() - done, kMaxPieceBytes / element_bytes);
  from += done * element_bytes;
  piece->set_offset_elements(range.begin_elements() + done);
  std::string* data = piece->mutable_data();
  data->resize(count * element_bytes);
  MemoryReader& state = range.array() == v1::LIVE_STATE_ARRAY_BUFFER
                            ? *buffers_
                            : *ranks_[range.rank() - local_.first()].state;
  RETURN_IF_ERROR(state.Read(data->data(), from, static_cast<int64_t>(data->size())));
  // After the copy: what was read is only worth something if it still stood then.
  RETURN_IF_ERROR(CheckStands());
  // Over what is sent, to find damage on the way to the successor.
  piece->set_crc32(Crc32(*data));
  return count;
}

}  // namespace tessera
