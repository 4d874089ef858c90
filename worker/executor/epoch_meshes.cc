#include "worker/executor/epoch_meshes.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "worker/comm/hosts/hosts_communicator.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<EpochMeshes>> EpochMeshes::Listen(const RankTopology& topology,
                                                                 Rank rank, Epoch epoch,
                                                                 const std::string& data_host) {
  auto meshes = std::make_unique<EpochMeshes>();
  // A mesh for each row: operations of two threads must not meet in one.
  for (std::unique_ptr<PeerMesh>& mesh : meshes->meshes_) {
    PeerMesh::Options options;
    options.rank = static_cast<int>(rank.value());
    options.group_size = topology.world_size();
    options.peers = MeshPeers(topology, options.rank);
    // In the greeting: a peer of an earlier epoch, which still dials, is turned away.
    options.epoch = static_cast<uint32_t>(epoch.value());
    options.listen_host = data_host;
    ASSIGN_OR_RETURN(mesh, PeerMesh::Listen(std::move(options)));
    absl::StrAppend(&meshes->address_, meshes->address_.empty() ? "" : ",", mesh->address());
  }
  return meshes;
}

absl::StatusOr<std::unique_ptr<PeerMesh>> EpochMeshes::Connect(Row row,
                                                               const v1::ExecutorStart& start,
                                                               absl::Time deadline,
                                                               const std::function<bool()>& stop) {
  const size_t index = static_cast<size_t>(row);
  std::map<int, std::string> addresses;
  for (const auto& [rank, all] : start.rank_addresses()) {
    // From other workers, through the coordinator. A rank without an address is missed in Connect.
    const std::vector<std::string> rows = absl::StrSplit(all, ',');
    if (rows.size() == kNumRows) addresses[rank] = rows[index];
  }
  RETURN_IF_ERROR(meshes_[index]->Connect(addresses, deadline, stop));
  return std::move(meshes_[index]);
}

}  // namespace tessera
