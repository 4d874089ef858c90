#include "worker/keeper/direct_map_socket.h"

#include <poll.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "shm/fd_passing.h"
#include "shm/local_messages.h"
#include "shm/shared_file.h"

namespace tessera {
namespace {

// Between two looks whether what was given is still there.
constexpr int kWatchIntervalMs = 100;

absl::Status Send(int socket, DirectMap* map) {
  const std::vector<UniqueFd> regions = map->TakeRegions();
  std::vector<int> fds;
  UniqueFd file;
  v1::LocalReply reply;
  *reply.mutable_map() = map->TakeAnswer();
  // An answer that is too long for a packet goes as memory.
  if (!HasRoomInPacket(reply.map())) {
    ASSIGN_OR_RETURN(file, MakeSealedFile("direct-map", reply.map().SerializeAsString()));
    fds.push_back(file.get());
    // Descriptors that were sent are the client's. This process keeps none.
    reply.clear_map();
  }
  // After the answer's file: the client takes what follows it as the regions, in the answer's
  // order.
  for (const UniqueFd& region : regions) fds.push_back(region.get());
  // A first packet always has room, unless its receiver is gone.
  return SendPacket(socket, EncodeReply(reply), fds, /*wait=*/false);
}

void Refuse(int socket, const absl::Status& why) {
  (void)SendPacket(socket, EncodeReply(why), {}, /*wait=*/false);
}

}  // namespace

std::unique_ptr<DirectMap> AnswerDirectMap(int socket, DirectMaps* maps,
                                           const v1::LiveStateQuery& query) {
  absl::StatusOr<std::unique_ptr<DirectMap>> map = maps->Open(query);
  absl::Status status = map.status();
  if (status.ok()) status = Send(socket, map->get());
  if (status.ok()) return *std::move(map);
  Refuse(socket, status);
  return nullptr;
}

void ServeDirectMap(int socket, const DirectMap& map) {
  while (true) {
    pollfd wait = {socket, POLLIN, 0};
    if (poll(&wait, 1, kWatchIntervalMs) > 0) return;  // A client says nothing more: it ended.
    // The client learns that its map is of memory that no step changes any more.
    const absl::Status status = map.CheckNew();
    if (!status.ok()) return Refuse(socket, status);
  }
}

}  // namespace tessera
