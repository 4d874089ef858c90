// The buffers of a rank's trainer, version by version as the state: rank 0's for readers of a
// version, each rank's own for a trainer that replaces a dead one.
//
//   trainer    ── staging ──► Publish(v): slot v % 2     the rank's executor, before v is applied
//   file, put  ── Load(v) ──► slot v % 2 ──► Publish(v): staging ──► trainer
//                             slot v % 2 ──► Restore(v): staging ──► the trainer after that one
//
// A slot is written when the rank's shard of the version is, so a hold of the version (see
// state_hold.h) holds it too. Only what differs from what the slot has is copied, by sequence words
// (see buffer_memory.h); what the trainer had not written whole stays as the version before has it.
// Publish again after a death in the middle gives the same. What a load stages belongs to the
// version to come, so that one which is not decided leaves no trace; once it is, staging has it as
// well.
//
// The owner of this maps the memory, which outlives it. Confined to the engine's thread.
#ifndef TESSERA_WORKER_ENGINE_BUFFER_SLOTS_H_
#define TESSERA_WORKER_ENGINE_BUFFER_SLOTS_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "shm/buffer_memory.h"

namespace tessera {

class BufferSlots {
 public:
  // `slots`: two banks, of even and of odd versions.
  BufferSlots(const BufferPlacement* placement, std::byte* staging, std::byte* slots);

  int size() const { return size_; }  // Of buffers.
  // Makes those of version `step`, of which the one before is whole; of the job's first, step 0,
  // there is none before.
  void Publish(int64_t step);
  // A buffer's bytes in version `step`, which is not decided yet: `read` writes all of them. Its
  // error is returned, and the version is not to be.
  absl::Status Load(int64_t step, int buffer,
                    absl::FunctionRef<absl::Status(std::byte* values)> read);
  // The same of bytes that are there. Requires all of them.
  void Load(int64_t step, int buffer, absl::string_view values);
  // As of version `step` another rank has them, in `bank`; the trainer of this one is given them.
  void TakeOver(int64_t step, std::byte* bank);
  // Of a version that is not to be.
  void DropLoaded();
  // Gives the trainer, which writes nothing meanwhile, those of version `step`, the last that is
  // whole. What was never set is left as it is.
  void Restore(int64_t step);

  int64_t num_copied() const { return num_copied_; }  // Buffers copied into slots, ever.

 private:
  void PublishOne(int64_t step, int buffer);
  // False where somebody wrote to `from` meanwhile: `to` has nothing whole then.
  bool Copy(int buffer, const BufferBank& from, const BufferBank& to, uint64_t sequence);

  const BufferPlacement* const placement_;
  const int size_;
  const BufferBank staging_;
  const BufferBank slots_[2];
  int64_t num_copied_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_BUFFER_SLOTS_H_
