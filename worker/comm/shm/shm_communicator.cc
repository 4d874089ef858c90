// Joining, phases, aborting. The operations are in shm_collectives.cc.
#include "worker/comm/shm/shm_communicator.h"

#include <unistd.h>

#include <cstring>
#include <random>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "worker/comm/operation_digest.h"
#include "worker/comm/shm/process_memory.h"

namespace tessera {
namespace {

constexpr int kMaxSize = 1024;
constexpr int kMaxChannels = 64;
constexpr int64_t kMinStagingBytes = 4096;
constexpr int64_t kMaxStagingBytes = int64_t{1} << 30;

ShmRegion RegionOf(const ShmCommunicator::Options& options) {
  return ShmRegion(options.base, options.size, options.num_channels,
                   options.staging_bytes_per_rank);
}

absl::Status CheckMapping(const ShmCommunicator::Options& options) {
  ASSIGN_OR_RETURN(const int64_t required, ShmCommunicator::RequiredBytes(options.size, options));
  if (options.base == nullptr || options.bytes < required) {
    return absl::InvalidArgumentError(absl::StrCat("the mapping has ", options.bytes, " bytes; ",
                                                   options.size, " ranks need ", required));
  }
  if (reinterpret_cast<uintptr_t>(options.base) % kShmLineBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the mapping is not aligned to ", kShmLineBytes, " bytes"));
  }
  if (options.epoch < 1) return absl::InvalidArgumentError("epochs start at 1");
  return absl::OkStatus();
}

// Phases wrap around. Ranks are at most one phase apart, so the sign of the difference decides.
bool HasReached(uint32_t arrived, uint32_t phase) {
  return static_cast<int32_t>(arrived - phase) >= 0;
}

}  // namespace

absl::StatusOr<int64_t> ShmCommunicator::RequiredBytes(int size, const Options& options) {
  if (size < 1 || size > kMaxSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("size ", size, " is not in [1, ", kMaxSize, "]"));
  }
  if (options.num_channels < 1 || options.num_channels > kMaxChannels) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_channels ", options.num_channels, " is not in [1, ", kMaxChannels, "]"));
  }
  const int64_t staging = options.staging_bytes_per_rank;
  const int64_t per_peer = int64_t{2} * kShmLineBytes * size;
  if (staging < kMinStagingBytes || staging > kMaxStagingBytes || staging < per_peer ||
      staging % (2 * kShmLineBytes) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "staging_bytes_per_rank ", staging, " is not a multiple of ", 2 * kShmLineBytes, " in [",
        std::max(kMinStagingBytes, per_peer), ", ", kMaxStagingBytes, "]"));
  }
  return ShmRegion(nullptr, size, options.num_channels, staging).TotalBytes();
}

absl::StatusOr<std::unique_ptr<ShmCommunicator>> ShmCommunicator::Create(const Options& options) {
  RETURN_IF_ERROR(CheckMapping(options));
  if (options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " of ", options.size));
  }
  if (options.channel < 0 || options.channel >= options.num_channels) {
    return absl::InvalidArgumentError(
        absl::StrCat("channel ", options.channel, " of ", options.num_channels));
  }
  auto communicator = absl::WrapUnique(new ShmCommunicator(options));
  RETURN_IF_ERROR(communicator->Join());
  return communicator;
}

absl::Status ShmCommunicator::AbortEpoch(const Options& options, const absl::Status& reason) {
  RETURN_IF_ERROR(CheckMapping(options));
  RegionOf(options).Abort(options.epoch, reason.message());
  return absl::OkStatus();
}

ShmCommunicator::ShmCommunicator(const Options& options)
    : options_(options),
      region_(RegionOf(options)),
      abort_(&region_.abort_block()->aborted_epoch, options.epoch),
      policy_(WaitPolicy::ForParties(options.size)),
      timeout_(options.timeout),
      nonce_(std::random_device()() | uint64_t{std::random_device()()} << 32),
      sources_(options.size, nullptr) {}

absl::Status ShmCommunicator::Join() {
  RankSlot* mine = region_.slot(options_.channel, options_.rank);
  // An executor of this rank that died in this epoch had joined it. A successor that joined again
  // could continue in the middle of its phases.
  const uint32_t joined = mine->joined.value.load(std::memory_order_acquire);
  if (joined >= options_.epoch) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", Named(options_.rank), " joined epoch ", joined,
                     " before, so it cannot join ", options_.epoch));
  }
  // Before the words below change: stragglers of earlier epochs must end, not read on.
  region_.Supersede(options_.epoch);
  std::memset(region_.staging(options_.channel, options_.rank), 0,
              static_cast<size_t>(options_.staging_bytes_per_rank));  // Faults the pages in.
  // These may be relaxed: Publish of `joined` orders them before it, and peers acquire that word.
  mine->arrived.value.store(0, std::memory_order_relaxed);
  mine->geometry.store(region_.Geometry(), std::memory_order_relaxed);
  mine->process.store(getpid(), std::memory_order_relaxed);
  mine->offered.store(reinterpret_cast<uint64_t>(&nonce_), std::memory_order_relaxed);
  mine->nonce.store(nonce_, std::memory_order_relaxed);
  Publish(&mine->joined, options_.epoch);
  RETURN_IF_ERROR(AwaitAll(&RankSlot::joined));
  for (int r = 0; r < options_.size; ++r) {
    const RankSlot* slot = region_.slot(options_.channel, r);
    if (slot->geometry.load(std::memory_order_relaxed) != region_.Geometry()) {
      return Break(absl::FailedPreconditionError(absl::StrCat(
          "rank ", Named(r), " joined with another size, channel count or staging size")));
    }
  }
  // A second round: memory is read only if all ranks can, so that all take the same path.
  mine->reads_memory.store(CanReadPeers(), std::memory_order_relaxed);
  // Release: `reads_memory` above is visible to each rank that sees this.
  Publish(&mine->probed, options_.epoch);
  RETURN_IF_ERROR(AwaitAll(&RankSlot::probed));
  reads_memory_ = true;
  for (int r = 0; r < options_.size; ++r) {
    const RankSlot* slot = region_.slot(options_.channel, r);
    if (slot->reads_memory.load(std::memory_order_relaxed) == 0) reads_memory_ = false;
  }
  return absl::OkStatus();
}

absl::Status ShmCommunicator::AwaitAll(WaitWord RankSlot::*word) {
  // One for all ranks: a wait for each would add up.
  const absl::Time deadline = SteadyNow() + options_.join_timeout;
  for (int r = 0; r < options_.size; ++r) {
    const absl::Status status = WaitUntil(
        &(region_.slot(options_.channel, r)->*word),
        [this](uint32_t epoch) { return epoch >= options_.epoch; }, abort_, deadline, policy_);
    if (absl::IsAborted(status)) return Break(status);
    if (!status.ok()) {
      return Break(absl::DeadlineExceededError(absl::StrCat(
          "ranks ", MissingRanks(word, options_.epoch), " of ", NamedSize(), " did not join epoch ",
          options_.epoch, " within ", absl::FormatDuration(options_.join_timeout))));
    }
  }
  return absl::OkStatus();
}

bool ShmCommunicator::CanReadPeers() const {
  // The kernel refuses it where a process cannot be dumped or traced. Then all data is staged.
  if (!options_.reads_peers_memory) return false;
  for (int r = 0; r < options_.size; ++r) {
    if (r == options_.rank) continue;
    const RankSlot* slot = region_.slot(options_.channel, r);
    // Of another pid namespace it may be anybody's, or nobody's.
    uint64_t found = 0;
    const absl::Status read =
        ReadProcessMemory(slot->process.load(std::memory_order_relaxed),
                          slot->offered.load(std::memory_order_relaxed), &found, sizeof(found));
    // The nonce shows that the pid means the same process here as it does to that rank.
    if (!read.ok() || found != slot->nonce.load(std::memory_order_relaxed)) return false;
  }
  return true;
}

absl::Status ShmCommunicator::Phase(uint32_t digest) {
  // After the first error the ranks' phases need not match any more.
  if (!broken_.ok()) return broken_;
  // The reason is in the region. Break fetches it.
  if (abort_.raised()) return Break(absl::AbortedError(""));
  // From 1: a slot that was reset for this epoch has 0, and nobody has arrived.
  const uint32_t phase = ++phase_;
  RankSlot* mine = region_.slot(options_.channel, options_.rank);
  // The digest first: peers read it once they have seen the arrival.
  mine->digests[phase % 2].store(digest, std::memory_order_relaxed);
  // Release: what this rank has staged is visible to each rank that sees this.
  Publish(&mine->arrived, phase);
  // Set only if some peer is late, so that a phase in which all are there reads no clock.
  absl::Time deadline = absl::InfinitePast();
  for (int i = 1; i < options_.size; ++i) {
    // Each begins with the rank after it, so that not all read one line at once.
    const int peer = (options_.rank + i) % options_.size;
    const RankSlot* slot = region_.slot(options_.channel, peer);
    // Pairs with the peer's Publish: what it staged before this phase is visible from here on.
    if (!HasReached(slot->arrived.value.load(std::memory_order_acquire), phase)) {
      if (deadline == absl::InfinitePast()) deadline = SteadyNow() + timeout_;
      RETURN_IF_ERROR(AwaitPeer(peer, phase, digest, deadline));
    }
    // A peer may be one phase ahead of this one, never two: it waits for this rank. So its digest
    // of this phase still stands.
    const uint32_t other = slot->digests[phase % 2].load(std::memory_order_relaxed);
    if (other != digest) {
      return Break(absl::FailedPreconditionError(
          absl::StrCat("rank ", Named(options_.rank), " called ", OperationName(digest),
                       " while rank ", Named(peer), " called ", OperationName(other),
                       digest >> 24 == other >> 24 ? " with other sizes or types" : "")));
    }
  }
  return absl::OkStatus();
}

absl::Status ShmCommunicator::AwaitPeer(int peer, uint32_t phase, uint32_t digest,
                                        absl::Time deadline) {
  const absl::Status status = WaitUntil(
      &region_.slot(options_.channel, peer)->arrived,
      [phase](uint32_t arrived) { return HasReached(arrived, phase); }, abort_, deadline, policy_);
  if (status.ok()) return status;
  if (absl::IsAborted(status)) return Break(status);
  return Break(absl::DeadlineExceededError(absl::StrCat(
      OperationName(digest), ": rank ", Named(options_.rank), " waited ",
      absl::FormatDuration(timeout_), " for ranks ", MissingRanks(&RankSlot::arrived, phase_),
      " of ", NamedSize(), " (epoch ", options_.epoch, ", channel ", options_.channel, ")")));
}

absl::Status ShmCommunicator::Break(absl::Status status) {
  // An abort by others has its reason in the region. An error of this rank becomes the reason.
  if (absl::IsAborted(status)) {
    status = absl::AbortedError(region_.AbortReason(options_.epoch));
  } else {
    Abort(status);
  }
  broken_ = status;
  return status;
}

std::string ShmCommunicator::MissingRanks(WaitWord RankSlot::*word, uint32_t value) const {
  std::vector<int> missing;
  for (int r = 0; r < options_.size; ++r) {
    const RankSlot* slot = region_.slot(options_.channel, r);
    if (!HasReached((slot->*word).value.load(), value)) missing.push_back(Named(r));
  }
  return absl::StrJoin(missing, ", ");
}

void ShmCommunicator::Abort(absl::Status reason) {
  // Not broken_, which is the calling thread's: its next look at the region finds the abort.
  region_.Abort(options_.epoch,
                absl::StrCat("rank ", Named(options_.rank), ": ", reason.message()));
}

}  // namespace tessera
