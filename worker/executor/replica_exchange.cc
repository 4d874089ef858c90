#include "worker/executor/replica_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "worker/engine/group_page.h"

namespace tessera {
namespace {

constexpr int64_t kBytesAtOnce = int64_t{64} << 20;

// Of one host, what all of its ranks have in common.
std::vector<uint64_t> PlaceForProgress(const ExecutorMemory& memory) {
  // One word more, for what is a rank's and not its host's.
  return std::vector<uint64_t>(1 + HostProgressWords(static_cast<int>(memory.config.groups.size()),
                                                     memory.plan.num_parameters()));
}

PeerMesh::Part Whole(int peer, std::vector<uint64_t>* words) {
  return {peer, words->data(), static_cast<int64_t>(words->size() * sizeof(uint64_t))};
}

}  // namespace

absl::StatusOr<ReplicaDuties> DutiesOf(int rank, const std::set<int>& rebuilt,
                                       const ModelLayout& layout, int world_size) {
  int64_t num_shards = 1;
  for (const UnitLayout& unit : layout.units)
    // The unit in the most shards decides: replicas of it hold replicas of all others.
    num_shards = std::max(num_shards, unit.shards.num_shards());
  ReplicaDuties duties;
  for (const int empty : rebuilt) {
    if (empty < 0 || empty >= world_size)
      return absl::InvalidArgumentError(absl::StrCat("there is no rank ", empty));
    // The next rank with the same shard that was not lost itself. All ranks compute the same
    // duties.
    int64_t source = empty % num_shards;
    while (source < world_size && rebuilt.count(static_cast<int>(source)) > 0) source += num_shards;
    if (source >= world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", empty, " has lost its shards, and no other rank has them"));
    }
    if (empty == rank) duties.source = static_cast<int>(source);
    if (source == rank) duties.targets.push_back(empty);
  }
  return duties;
}

std::vector<PeerMesh::Part> ReplicaExchange::StateParts(int peer, int64_t step) const {
  const ExecutorMemory& memory = *options_.memory;
  std::vector<StateArray> arrays = {StateArray::kParameter};
  for (const StateArray moment : MomentsOf(memory.config.optimizer)) arrays.push_back(moment);
  const std::vector<ShardSegment> segments =
      SegmentsOf(memory.layout, memory.config, memory.plan, memory.rank);
  std::byte* state = memory.state.data_as<std::byte>();
  std::vector<PeerMesh::Part> parts;
  for (const StateArray array : arrays) {
    for (const ShardSegment& segment : segments) {
      std::byte* at = options_.image != nullptr
                          ? static_cast<std::byte*>(options_.image->At(array, segment).data())
                          : state +
                                memory.plan.StateOffsetBytes(array, static_cast<int>(step % 2)) +
                                segment.state_begin_elements * SizeBytes(segment.dtype);
      const int64_t bytes = segment.numel * SizeBytes(segment.dtype);
      // Segments that adjoin are one part, so that a rank with an image and one without send the
      // same bytes.
      const bool follows =
          !parts.empty() && static_cast<std::byte*>(parts.back().data) + parts.back().bytes == at;
      if (follows) {
        parts.back().bytes += bytes;
      } else {
        parts.push_back({peer, at, bytes});
      }
    }
  }
  return parts;
}

absl::Status ReplicaExchange::MoveAll(int peer, std::vector<PeerMesh::Part> parts,
                                      bool is_sender) const {
  std::vector<PeerMesh::Part> piece;
  int64_t piece_bytes = 0;
  const auto move = [&] {
    const absl::Status status =
        is_sender ? options_.move(peer, piece, {}) : options_.move(peer, {}, piece);
    piece.clear();
    piece_bytes = 0;
    return status;
  };
  for (PeerMesh::Part& part : parts) {
    while (part.bytes > 0) {
      // Cut by bytes, not by parts: both sides cut at the same places, however their parts lie.
      const int64_t bytes = std::min(part.bytes, kBytesAtOnce - piece_bytes);
      piece.push_back({peer, part.data, bytes});
      piece_bytes += bytes;
      part.data = static_cast<std::byte*>(part.data) + bytes;
      part.bytes -= bytes;
      if (piece_bytes < kBytesAtOnce) continue;
      RETURN_IF_ERROR(move());
      RETURN_IF_ERROR(FaultPoint("rebuild.piece"));
    }
  }
  return piece.empty() ? absl::OkStatus() : move();
}

absl::Status ReplicaExchange::SendTo(int rank, int64_t step) {
  const ExecutorMemory& memory = *options_.memory;
  const RankRecord& record = memory.group_page()->ranks[memory.local_index()];
  std::vector<uint64_t> progress = PlaceForProgress(memory);
  progress[0] = record.has_momentum.load();
  SaveHostProgress(*memory.group_page(), memory.update_counts(), step,
                   static_cast<int>(memory.config.groups.size()),
                   absl::MakeSpan(progress).subspan(1));
  // First, since it says whether anything follows.
  RETURN_IF_ERROR(MoveAll(rank, {Whole(rank, &progress)}, /*is_sender=*/true));
  // The words say so as well: the receiver waits for nothing more either.
  if (memory.group_page()->initialized.load() == 0) return absl::OkStatus();
  RETURN_IF_ERROR(FaultPoint("rebuild.before-state"));
  if (options_.image != nullptr) {
    RETURN_IF_ERROR(options_.image->Reserve(options_.kernels));
    // The GPU's state goes through host memory.
    RETURN_IF_ERROR(options_.image->Pull(static_cast<int>(step % 2), options_.kernels));
  }
  RETURN_IF_ERROR(MoveAll(rank, StateParts(rank, step), /*is_sender=*/true));
  if (memory.plan.buffers().empty()) return absl::OkStatus();
  std::byte* banks =
      memory.group.data() + BufferSlotsOffsetBytes(memory.plan, memory.local_index());
  const int64_t bank_bytes = memory.plan.buffers().bank_bytes();
  return MoveAll(rank, {{rank, banks + step % 2 * bank_bytes, bank_bytes}}, /*is_sender=*/true);
}

absl::Status ReplicaExchange::ReceiveFrom(int rank, int64_t step) {
  const ExecutorMemory& memory = *options_.memory;
  GroupPage* group = memory.group_page();
  std::vector<uint64_t> progress = PlaceForProgress(memory);
  RETURN_IF_ERROR(MoveAll(rank, {Whole(rank, &progress)}, /*is_sender=*/false));
  const auto words = absl::MakeConstSpan(progress).subspan(1);
  // The source must be at the step that all resume at.
  // Before a byte of the state is taken: what follows is written straight into this rank's memory.
  RETURN_IF_ERROR(CheckHostProgress(words, step, static_cast<int>(memory.config.groups.size())));
  RETURN_IF_ERROR(FaultPoint("rebuild.before-state"));
  if (IsInitialized(words)) {
    // Want of memory ends the epoch here: without values the rank can do nothing in it.
    if (options_.image != nullptr) RETURN_IF_ERROR(options_.image->Reserve(options_.kernels));
    RETURN_IF_ERROR(MoveAll(rank, StateParts(rank, step), /*is_sender=*/false));
    if (options_.image != nullptr) {
      RETURN_IF_ERROR(options_.image->Push(static_cast<int>(step % 2), options_.kernels));
    }
    if (!memory.plan.buffers().empty()) {
      // Apart: the sender's sequence words mean nothing in this rank's slots.
      std::vector<std::byte> bank(memory.plan.buffers().bank_bytes());
      RETURN_IF_ERROR(MoveAll(rank, {{rank, bank.data(), static_cast<int64_t>(bank.size())}},
                              /*is_sender=*/false));
      options_.buffers->TakeOver(step, bank.data());
    }
  }
  RETURN_IF_ERROR(FaultPoint("rebuild.before-publish"));
  RankRecord& record = group->ranks[memory.local_index()];
  record.has_momentum.store(static_cast<uint32_t>(progress[0]));
  // Before applied_step: a rank that counts as being at a step has its progress.
  RestoreHostProgress(words, group, memory.update_counts(),
                      static_cast<int>(memory.config.groups.size()));
  // The shard is whole from here on. A kill before this leaves the rank without values.
  record.applied_step.store(step, std::memory_order_release);
  // What trainers read is not there yet: the engine's start publishes it.
  // A kill before it is harmless: the worker takes the rank for rebuilt once its executor has
  // started.
  if (IsInitialized(words)) UnpublishApplied(group, memory.local_index());
  return absl::OkStatus();
}

}  // namespace tessera
