// Gives a rank that has none of the job's values those of a rank with the same shards: the state of
// one step, its buffers, and what its host knows of that step.
//
//   rank 1, whole at step 7 ── progress, flags, p, m, v, buffers ──► rank 3, empty
//
// What is received becomes the rank's own only once all of it came. Either end takes part in one
// exchange at a time, before its engine runs and while the other ranks of the job wait for it.
// Thread-compatible.
#ifndef TESSERA_WORKER_EXECUTOR_REPLICA_EXCHANGE_H_
#define TESSERA_WORKER_EXECUTOR_REPLICA_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "layout/model_layout.h"
#include "worker/comm/tcp/peer_mesh.h"
#include "worker/device/rank_kernels.h"
#include "worker/engine/buffer_slots.h"
#include "worker/engine/state_image.h"
#include "worker/executor/executor_memory.h"

namespace tessera {

// What one rank has to do where some are rebuilt.
struct ReplicaDuties {
  std::optional<int> source;  // Set: this rank is rebuilt, from there.
  std::vector<int> targets;   // The ranks that are rebuilt from this one, ascending.
};
// Errors: InvalidArgument  a rank does not exist, or no other one has all of its shards
absl::StatusOr<ReplicaDuties> DutiesOf(int rank, const std::set<int>& rebuilt,
                                       const ModelLayout& layout, int world_size);

class ReplicaExchange {
 public:
  // Moves the parts to and from one other rank, which does the same.
  using Move = std::function<absl::Status(int peer, absl::Span<const PeerMesh::Part> sends,
                                          absl::Span<const PeerMesh::Part> receives)>;
  struct Options {
    const ExecutorMemory* memory = nullptr;
    RankKernels* kernels = nullptr;
    StateImage* image = nullptr;     // Null: the state is addressable.
    BufferSlots* buffers = nullptr;  // The rank's.
    Move move;
  };
  explicit ReplicaExchange(Options options) : options_(std::move(options)) {}

  // This rank is whole at `step`, which is its host's decided one.
  // Errors: those of `move`, StateImage::Reserve and Pull
  absl::Status SendTo(int rank, int64_t step);
  // Errors: those of `move`, StateImage::Reserve and Push
  //         DataLoss  what came is of another step
  absl::Status ReceiveFrom(int rank, int64_t step);

 private:
  // The state of version step % 2, in host memory.
  std::vector<PeerMesh::Part> StateParts(int peer, int64_t step) const;
  // In pieces, so that each wait shows whether the other rank makes progress.
  absl::Status MoveAll(int peer, std::vector<PeerMesh::Part> parts, bool is_sender) const;

  const Options options_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_REPLICA_EXCHANGE_H_
