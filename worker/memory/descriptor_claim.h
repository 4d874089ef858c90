// What a trainer and its worker say to each other on the descriptor socket. See descriptor_server.h
// for how that goes on.
//
//   TICKET         ──►  "ok", the rank's regions
//   TICKET|hosts   ──►  "ok EPOCH", the same and the trainer's end of its executor's socket: from
//                       that epoch on the rank's executor runs in the trainer's process
//                       "ok EPOCH only", where the worker could run none itself
//
// Pure. What comes over the socket is untrusted.
#ifndef TESSERA_WORKER_MEMORY_DESCRIPTOR_CLAIM_H_
#define TESSERA_WORKER_MEMORY_DESCRIPTOR_CLAIM_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"

namespace tessera {

struct DescriptorClaim {
  std::string job_id;
  int64_t creation = 0;
  Rank rank;
  Incarnation attachment;
  bool hosts_executor = false;
};

// `ticket`: of that claim, which hosts nothing.
std::string ClaimText(absl::string_view ticket, bool hosts_executor);
// Errors: NotFound  it is no ticket.
absl::StatusOr<DescriptorClaim> ParseClaim(absl::string_view text);
std::string TicketOf(const DescriptorClaim& claim);

struct GivenClaim {
  int64_t first_epoch = 0;  // That the trainer's executor is in; 0: it hosts none.
  bool only_host = false;   // No other executor than the trainer's can be the rank's.
};
std::string ClaimReply(const GivenClaim& given);
// Errors: FailedPrecondition  the worker's own
//         Unavailable         the worker gave nothing for another reason; both with its words
absl::StatusOr<GivenClaim> ParseClaimReply(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_WORKER_MEMORY_DESCRIPTOR_CLAIM_H_
