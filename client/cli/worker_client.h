// A worker's own service, on its Unix socket, as commands use it. Thread-safe; no gRPC type shows
// here. Every error names the worker's address; Unavailable and DeadlineExceeded as JobsClient.
#ifndef TESSERA_CLIENT_CLI_WORKER_CLIENT_H_
#define TESSERA_CLIENT_CLI_WORKER_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "client/cli/endpoint.h"
#include "proto/worker.pb.h"

namespace tessera::cli {

class WorkerClient {
 public:
  // Errors: as OpenChannel. Connects at the first call.
  static absl::StatusOr<std::unique_ptr<WorkerClient>> Create(const Endpoint& endpoint);
  virtual ~WorkerClient() = default;

  virtual absl::StatusOr<v1::WorkerStatusResponse> GetStatus() = 0;
  // Errors: NotFound  no such job or rank on this worker.
  virtual absl::StatusOr<v1::DumpRankResponse> DumpRank(const std::string& job_id, Rank rank) = 0;
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_WORKER_CLIENT_H_
