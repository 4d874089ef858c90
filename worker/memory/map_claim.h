// What a client that maps a job's state and the worker say to each other on the descriptor socket.
//
//   map|SESSION  ──►  "ok", LiveMapGiven as a file, the group region, states of ranks
//                     or "CODE|why", nothing; then the socket is closed
//   \xffmap QUERY ──►  "ok|LiveMapAnswer", the group region, states of ranks; or, where that has no
//                     room, "ok" and a file with it before them; or "CODE|why", nothing
//                     ... mapped: the socket stays open ...
//                     "CODE|why" once nothing newer comes; whoever is through closes it
//
// SESSION is the coordinator's leave; QUERY a LiveStateQuery of a job that is the worker's alone.
// Pure. What comes over the socket is untrusted.
#ifndef TESSERA_WORKER_MEMORY_MAP_CLAIM_H_
#define TESSERA_WORKER_MEMORY_MAP_CLAIM_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

std::string MapClaimText(absl::string_view session);
// Whether it is one, or is meant to be: never true of a trainer's (descriptor_claim.h).
bool IsMapClaim(absl::string_view text);
// The session that it shows. Requires IsMapClaim.
absl::string_view SessionOf(absl::string_view claim);

// `query`: the message's bytes.
std::string MapQueryText(absl::string_view query);
// Whether it is one: never true of another claim, as no job's id begins so (it is UTF-8).
bool IsMapQuery(absl::string_view text);
// Requires IsMapQuery.
absl::string_view QueryOf(absl::string_view text);

std::string MapReplyText(const absl::Status& status);
// As the worker said; Unavailable where it said something else.
absl::Status ParseMapReply(absl::string_view text);

// With an answer that has room in a packet, which IsShortAnswer says.
std::string MapAnswerText(absl::string_view answer);
bool IsShortAnswer(absl::string_view answer);
// The answer; empty where it comes as a file. Errors: as ParseMapReply.
absl::StatusOr<absl::string_view> ParseMapAnswer(absl::string_view text);

// On a worker's host: its descriptor socket, beside the one that it is called at.
inline constexpr absl::string_view kDescriptorSocketName = "descriptors.sock";
// Errors: InvalidArgument  `worker_address` is no path of a Unix socket ("unix:...").
absl::StatusOr<std::string> DescriptorSocketOf(absl::string_view worker_address);

}  // namespace tessera

#endif  // TESSERA_WORKER_MEMORY_MAP_CLAIM_H_
