// The coordinator's service Checkpoints as commands use it. Thread-safe; no gRPC type shows here.
// Errors: as JobsClient's, and see proto/saves.proto.
#ifndef TESSERA_CLIENT_CLI_SAVES_CLIENT_H_
#define TESSERA_CLIENT_CLI_SAVES_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/endpoint.h"
#include "proto/saves.pb.h"

namespace tessera::cli {

class SavesClient {
 public:
  // Errors: as OpenChannel. Connects at the first call.
  static absl::StatusOr<std::unique_ptr<SavesClient>> Create(const Endpoint& endpoint);
  virtual ~SavesClient() = default;

  virtual absl::StatusOr<v1::Save> Request(const v1::RequestSaveRequest& request) = 0;
  virtual absl::StatusOr<v1::Save> Get(const std::string& job_id, int64_t number) = 0;
  virtual absl::StatusOr<v1::Save> Cancel(const std::string& job_id, int64_t number) = 0;
  virtual absl::StatusOr<v1::ListCheckpointsResponse> List(const std::string& job_id) = 0;
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_SAVES_CLIENT_H_
