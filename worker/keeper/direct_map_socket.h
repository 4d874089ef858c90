// A client that asks this worker for state to map, on its connection to the descriptor
// socket (proto/local.proto). Stateless; each socket is for one thread at a time.
#ifndef TESSERA_WORKER_KEEPER_DIRECT_MAP_SOCKET_H_
#define TESSERA_WORKER_KEEPER_DIRECT_MAP_SOCKET_H_

#include <memory>

#include "proto/live_state.pb.h"
#include "worker/keeper/direct_maps.h"

namespace tessera {

// What the client has been given, as the query asks; null where it was refused, and told so. Does
// not wait.
std::unique_ptr<DirectMap> AnswerDirectMap(int socket, DirectMaps* maps,
                                           const v1::LiveStateQuery& query);

// Until the client ends, or has been told that nothing newer comes, and why.
void ServeDirectMap(int socket, const DirectMap& map);

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_DIRECT_MAP_SOCKET_H_
