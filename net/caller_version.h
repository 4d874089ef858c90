// Which Tessera calls: each channel of ours says it with each call, in the user agent.
//
//   user-agent: tessera/0.1.0/1 grpc-c++/1.51.1 ...
//
// Callers other than Tessera's programs send no version, and are accepted.
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
// As CheckUserAgent, of the caller of this call. For the first call that one of our processes makes
// to another.
absl::Status CheckCaller(const grpc::ServerContextBase& context);

}  // namespace tessera

#endif  // TESSERA_NET_CALLER_VERSION_H_
