// A rank's connections with ranks of other workers in one epoch: a mesh for each row of operations
// that runs concurrently with the others. Move-only; thread-compatible.
#ifndef TESSERA_WORKER_EXECUTOR_EPOCH_MESHES_H_
#define TESSERA_WORKER_EXECUTOR_EPOCH_MESHES_H_

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "job/rank_topology.h"
#include "proto/executor.pb.h"
#include "worker/comm/tcp/peer_mesh.h"

namespace tessera {

// Rows of operations, each in an order of its own; also the channel in shared memory.
enum class Row {
  kReduce,  // Reductions and votes.
  kGather,  // Parameters.
  kFiles,   // Reads and writes of files, perhaps during training.
  kHost,    // What stays within a host, where there are several; has no mesh.
};
inline constexpr int kNumRows = 3;  // That have a mesh.

class EpochMeshes {
 public:
  // Errors: as PeerMesh::Listen
  static absl::StatusOr<std::unique_ptr<EpochMeshes>> Listen(const RankTopology& topology,
                                                             Rank rank, Epoch epoch,
                                                             const std::string& data_host);
  // What the other ranks must know: the meshes' addresses, with a comma between them.
  const std::string& address() const { return address_; }
  // Hands out a mesh that is connected; each once. Arguments and errors: as PeerMesh::Connect.
  absl::StatusOr<std::unique_ptr<PeerMesh>> Connect(Row row, const v1::ExecutorStart& start,
                                                    absl::Time deadline,
                                                    const std::function<bool()>& stop);

 private:
  std::array<std::unique_ptr<PeerMesh>, kNumRows> meshes_;
  std::string address_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_EPOCH_MESHES_H_
