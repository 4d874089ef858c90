// The bytes of a shared mapping that communicators of one host meet in. Internal to shm/.
//
//   [ AbortBlock ]
//   [ channel 0:  RankSlot x size | staging x size ]
//   [ channel 1:  RankSlot x size | staging x size ]  ...
//
// A slot and a staging area are written by their rank only; the abort block by anyone. All words
// are valid at zero. What another process wrote is never trusted for more than a value: no
// offset, length or pointer of this process is read from here. The one address in a slot is of its
// rank's own memory, for the kernel to read.
#ifndef TESSERA_WORKER_COMM_SHM_SHM_REGION_H_
#define TESSERA_WORKER_COMM_SHM_SHM_REGION_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "shm/wait_word.h"

namespace tessera {

constexpr int64_t kShmLineBytes = 128;  // Two cache lines: neighbours are fetched in pairs.

struct alignas(kShmLineBytes) AbortBlock {
  static constexpr size_t kReasonBytes = 480;

  std::atomic<uint32_t> aborted_epoch;  // The highest epoch that was aborted or superseded.
  std::atomic<uint32_t> claimed_epoch;  // The rank that moves this to its epoch writes the reason.
  std::atomic<uint32_t> reason_epoch;   // The epoch whose reason is complete.
  char reason[kReasonBytes];            // Zero-terminated.
};

struct alignas(kShmLineBytes) RankSlot {
  WaitWord arrived;                  // The number of phases that this rank has entered this epoch.
  std::atomic<uint32_t> digests[2];  // What it entered: phase p is at p mod 2.
  WaitWord joined;                   // The epoch that this rank joined.
  std::atomic<uint32_t> geometry;    // Must be the same on all ranks.
  // Whether ranks read each other's memory: in this epoch, `reads_memory` if this one can read that
  // of all others.
  WaitWord probed;  // The epoch of which the next word is.
  std::atomic<uint32_t> reads_memory;
  std::atomic<int32_t> process;   // Its pid.
  std::atomic<uint64_t> offered;  // An address in it: the nonce's, then what it sends.
  std::atomic<uint64_t> nonce;    // The value there when it joins.

  // All that a rank may wait for.
  std::array<const WaitWord*, 3> wait_words() const { return {&arrived, &joined, &probed}; }
};

// Where things are. Pure arithmetic over one base address.
class ShmRegion {
 public:
  ShmRegion(void* base, int size, int num_channels, int64_t staging_bytes)
      : base_(static_cast<char*>(base)),
        size_(size),
        num_channels_(num_channels),
        staging_bytes_(staging_bytes) {}

  int64_t ChannelBytes() const {
    return size_ * (static_cast<int64_t>(sizeof(RankSlot)) + staging_bytes_);
  }
  int64_t TotalBytes() const {
    return static_cast<int64_t>(sizeof(AbortBlock)) + num_channels_ * ChannelBytes();
  }
  uint32_t Geometry() const;  // Never 0.

  AbortBlock* abort_block() const { return reinterpret_cast<AbortBlock*>(base_); }
  RankSlot* slot(int channel, int rank) const {
    return reinterpret_cast<RankSlot*>(ChannelBase(channel)) + rank;
  }
  char* staging(int channel, int rank) const {
    return ChannelBase(channel) + size_ * static_cast<int64_t>(sizeof(RankSlot)) +
           rank * staging_bytes_;
  }

  // Marks `epoch` aborted and wakes all waiters. The first reason of an epoch stays.
  void Abort(uint32_t epoch, absl::string_view reason) const;
  // Makes stragglers of earlier epochs see an abort.
  void Supersede(uint32_t epoch) const;
  // Why `epoch` is aborted. Requires that it is.
  std::string AbortReason(uint32_t epoch) const;

 private:
  char* ChannelBase(int channel) const {
    return base_ + sizeof(AbortBlock) + channel * ChannelBytes();
  }
  void WakeEveryone() const;

  char* base_;
  int size_;
  int num_channels_;
  int64_t staging_bytes_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_SHM_SHM_REGION_H_
