// The messages of a worker's descriptor socket (proto/local.proto) as packets. Each packet has one
// message, which is complete. Pure. What comes over the socket is untrusted.
#ifndef TESSERA_SHM_LOCAL_MESSAGES_H_
#define TESSERA_SHM_LOCAL_MESSAGES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/local.pb.h"

namespace tessera {

// Says this process's version, too.
std::string EncodeRequest(v1::LocalRequest request);
// Errors: InvalidArgument     no such message
//         FailedPrecondition  a caller of another protocol: names both versions
absl::StatusOr<v1::LocalRequest> ParseRequest(absl::string_view packet);

// Whether the names and their number are within their bounds; values may be any.
// Errors: InvalidArgument  names the value
absl::Status CheckReport(const v1::Report& report);

// Of `status` alone: its code and words, and how the caller may try again (WithRetry).
std::string EncodeReply(const absl::Status& status);
std::string EncodeReply(const v1::LocalReply& reply);
// Errors: the worker's own, with its retry; Unavailable  a malformed reply.
absl::StatusOr<v1::LocalReply> ParseReply(absl::string_view packet);

// An error that says whether the same request may succeed later.
absl::Status WithRetry(absl::Status status, v1::Retry retry);
v1::Retry RetryOf(const absl::Status& status);  // RETRY_NEVER where it does not say.

// A longer one travels in a file: a packet has no room for it.
bool HasRoomInPacket(const v1::LiveMapAnswer& answer);

// On a worker's host: its descriptor socket, next to the one that serves its calls.
inline constexpr absl::string_view kDescriptorSocketName = "descriptors.sock";
// Errors: InvalidArgument  `worker_address` is not the path of a Unix socket ("unix:...").
absl::StatusOr<std::string> DescriptorSocketOf(absl::string_view worker_address);

}  // namespace tessera

#endif  // TESSERA_SHM_LOCAL_MESSAGES_H_
