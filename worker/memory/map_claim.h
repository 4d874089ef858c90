// What a client that maps a job's state and the worker say to each other on the descriptor socket:
// one packet each, then the socket is closed.
//
//   map|SESSION  ──►  "ok", LiveMapGiven as a file, the group region, states of ranks
//                     or "CODE|why", nothing
//
// Pure. What comes over the socket is untrusted.
#ifndef TESSERA_WORKER_MEMORY_MAP_CLAIM_H_
#define TESSERA_WORKER_MEMORY_MAP_CLAIM_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

std::string MapClaimText(absl::string_view session);
// Whether it is one, or is meant to be: never true of a trainer's (descriptor_claim.h).
bool IsMapClaim(absl::string_view text);
// The session that it shows. Requires IsMapClaim.
absl::string_view SessionOf(absl::string_view claim);

std::string MapReplyText(const absl::Status& status);
// As the worker said; Unavailable where it said something else.
absl::Status ParseMapReply(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_WORKER_MEMORY_MAP_CLAIM_H_
