// The identity of a caller, as far as the connection proves it:
//
//   a Unix socket (local_listener.h)    "uid:1000"           as the kernel says
//   TLS                                 "certificate:alice"  the common name that the CA signed
//   TCP without TLS                     the server's own user, where the call carries its token
//                                       (access_token.h); else nobody
//
// Thread-safe.
#ifndef TESSERA_NET_CALLER_IDENTITY_H_
#define TESSERA_NET_CALLER_IDENTITY_H_

#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"

namespace tessera {

class LocalListener;

// "uid:1000", of this process.
std::string OwnIdentity();

class CallerIdentities {
 public:
  // `local` may be null and outlives this. An empty token is nobody's.
  CallerIdentities(std::string token, const LocalListener* local)
      : token_(std::move(token)), local_(local) {}

  // Errors: Unauthenticated  it is not known: says how it can be
  absl::StatusOr<std::string> Of(const grpc::ServerContextBase& context) const;

 private:
  bool HasToken(const grpc::ServerContextBase& context) const;

  const std::string token_;
  const LocalListener* const local_;
};

}  // namespace tessera

#endif  // TESSERA_NET_CALLER_IDENTITY_H_
