// How a trainer on a GPU tells its executor when what it has launched there is complete.
//
// For this folder. One thread at a time.
#ifndef TESSERA_CLIENT_SESSION_TRAINER_EVENTS_H_
#define TESSERA_CLIENT_SESSION_TRAINER_EVENTS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/session/rank_client.h"

namespace tessera {

// After attaching: makes the events and names them to the executor, where that can open them.
void NameGradientEvents(RankClient* client);

// 1 + the index of an event after what was launched so far; 0: it is complete, since this has
// waited. Errors: those of the GPU.
absl::StatusOr<uint32_t> RecordGradientEvent(RankClient* client);

// The same at the end of a window on the unit, after which nothing reads it any more. Also 0 where
// nobody asks, since the unit shares its memory with no other.
absl::StatusOr<uint32_t> EndWindow(RankClient* client, int unit);

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_TRAINER_EVENTS_H_
