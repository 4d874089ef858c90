// Layout of the buffers of a job's model, whose values each rank's trainer sets.
//
//   bank = | a sequence word for each buffer | buffer 0 | buffer 1 | ... |     64-byte aligned each
//   staging   what the trainer said last, or was given; after        trainer <-> executor
//             its rank's gradients
//   slots     of even versions, of odd versions; in the group region   executor; of rank 0 readers
//
// A sequence word is 0 where nothing was ever written, odd while something is, and else another one
// after each write, so that equal words of two banks mean equal bytes; except for kGivenWord, which
// staging has if the bytes are not its trainer's own. A trainer may write anything: words and bytes
// read from staging are only that trainer's claim.
#ifndef TESSERA_SHM_BUFFER_MEMORY_H_
#define TESSERA_SHM_BUFFER_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "job/buffer_placement.h"

namespace tessera {

// Of a sequence word: its rank's executor wrote the bytes.
inline constexpr uint64_t kGivenWord = uint64_t{1} << 62;

// One bank in mapped memory. A plain value; the memory and the placement outlive it.
class BufferBank {
 public:
  BufferBank() = default;
  BufferBank(const BufferPlacement* placement, std::byte* base)
      : placement_(placement), base_(base) {}

  std::atomic<uint64_t>& sequence(int buffer) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(base_)[buffer];
  }
  std::byte* values(int buffer) const { return base_ + placement_->offset_bytes(buffer); }
  int64_t size_bytes(int buffer) const { return placement_->size_bytes(buffer); }

  // Writes all of the buffer, size_bytes(buffer) bytes, and gives it another sequence word; of one
  // that was being written when its writer died, too. One writer at a time.
  void Write(int buffer, const void* values) const { WriteMarked(buffer, values, 0); }
  // The same with kGivenWord.
  void Give(int buffer, const void* values) const { WriteMarked(buffer, values, kGivenWord); }

 private:
  void WriteMarked(int buffer, const void* values, uint64_t mark) const;

  const BufferPlacement* placement_ = nullptr;
  std::byte* base_ = nullptr;
};

}  // namespace tessera

#endif  // TESSERA_SHM_BUFFER_MEMORY_H_
