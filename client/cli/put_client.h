// The coordinator's service LivePut as commands use it. Thread-safe; no gRPC type shows here.
#ifndef TESSERA_CLIENT_CLI_PUT_CLIENT_H_
#define TESSERA_CLIENT_CLI_PUT_CLIENT_H_

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/endpoint.h"
#include "proto/live_put.pb.h"

namespace tessera::cli {

class PutClient {
 public:
  // Errors: as OpenChannel. Connects at the first call.
  static absl::StatusOr<std::unique_ptr<PutClient>> Create(const Endpoint& endpoint);
  virtual ~PutClient() = default;

  // Sends `begin`, then what `send_pieces` gives to its argument, which returns false once the call
  // has ended, then the end; waits for the reply. An error of `send_pieces` ends the call, so that
  // nothing is set, and is returned as it is.
  // Errors: the service's, naming the coordinator's address; Unavailable  nothing answers there, or
  //         not any more: whether the values are set is not known then.
  using SendPiece = absl::FunctionRef<bool(const v1::LivePiece&)>;
  virtual absl::StatusOr<v1::PutReply> Put(
      const v1::PutBegin& begin, absl::FunctionRef<absl::Status(SendPiece)> send_pieces) = 0;
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_PUT_CLIENT_H_
