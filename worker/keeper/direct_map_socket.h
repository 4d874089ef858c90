// A client that asks this worker itself for state to map, on its connection to the descriptor
// socket (worker/memory/map_claim.h). Stateless; each socket is for one thread at a time.
#ifndef TESSERA_WORKER_KEEPER_DIRECT_MAP_SOCKET_H_
#define TESSERA_WORKER_KEEPER_DIRECT_MAP_SOCKET_H_

#include <memory>

#include "absl/strings/string_view.h"
#include "worker/keeper/direct_maps.h"

namespace tessera {

// What the client has been given, which is `claim`'s query; null where it was refused, and told so.
// Requires IsMapQuery(claim). Does not wait.
std::unique_ptr<DirectMap> AnswerDirectMap(int socket, DirectMaps* maps, absl::string_view claim);

// Until the client ends, or has been told that nothing newer comes, and why.
void ServeDirectMap(int socket, const DirectMap& map);

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_DIRECT_MAP_SOCKET_H_
