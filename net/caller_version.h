// Which Tessera calls: each channel of ours says it with each call, in the user agent.
//
//   user-agent: tessera/0.1.0/1 grpc-c++/1.51.1 ...
//
// Callers that are no program of ours say nothing of the kind, and are taken as they are.
// Stateless; thread-safe.
#ifndef TESSERA_NET_CALLER_VERSION_H_
#define TESSERA_NET_CALLER_VERSION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"

namespace tessera {

// What a channel says.
std::string OwnUserAgent();
// Errors: FailedPrecondition  the caller would misunderstand what follows: names both versions
absl::Status CheckUserAgent(absl::string_view user_agent);
// The same of who makes this call. For the first call that a process of ours makes to another.
absl::Status CheckCaller(const grpc::ServerContextBase& context);

}  // namespace tessera

#endif  // TESSERA_NET_CALLER_VERSION_H_
