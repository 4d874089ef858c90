#include "worker/keeper/direct_map_socket.h"

#include <poll.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "worker/memory/fd_passing.h"
#include "worker/memory/map_claim.h"
#include "worker/memory/shared_file.h"

namespace tessera {
namespace {

// Between two looks whether what was given is still there.
constexpr int kWatchIntervalMs = 100;

absl::Status Send(int socket, DirectMap* map) {
  std::vector<int> fds;
  UniqueFd file;
  std::string text;
  if (IsShortAnswer(map->answer())) {
    text = MapAnswerText(map->answer());
  } else {
    ASSIGN_OR_RETURN(file, MakeSealedFile("direct-map", map->answer()));
    fds.push_back(file.get());
    text = MapReplyText(absl::OkStatus());
  }
  for (const UniqueFd& region : map->regions()) fds.push_back(region.get());
  // A first packet always has room, unless its receiver is gone.
  RETURN_IF_ERROR(SendPacket(socket, text, fds, /*wait=*/false));
  map->ForgetWhatWasSent();
  return absl::OkStatus();
}

void Refuse(int socket, const absl::Status& why) {
  (void)SendPacket(socket, MapReplyText(why), {}, /*wait=*/false);
}

}  // namespace

std::unique_ptr<DirectMap> AnswerDirectMap(int socket, DirectMaps* maps, absl::string_view claim) {
  absl::StatusOr<std::unique_ptr<DirectMap>> map = maps->Open(QueryOf(claim));
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
    const absl::Status status = map.CheckNew();
    if (!status.ok()) return Refuse(socket, status);
  }
}

}  // namespace tessera
