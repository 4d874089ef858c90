// Test only: a gRPC server in this process with the services that commands call, on a free loopback
// port and a Unix socket. Holds what the test puts in; behaves as the .proto files say.
#ifndef TESSERA_CLIENT_CLI_FAKE_SERVER_H_
#define TESSERA_CLIENT_CLI_FAKE_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "proto/coordinator.pb.h"
#include "proto/events.pb.h"
#include "proto/worker.pb.h"

namespace tessera::cli {

class FakeServer {
 public:
  // The socket is made in `socket_dir`, which exists.
  static std::unique_ptr<FakeServer> Start(const std::string& socket_dir);
  virtual ~FakeServer() = default;  // Stops.

  virtual std::string coordinator_address() const = 0;  // "127.0.0.1:PORT"
  virtual std::string worker_address() const = 0;       // "unix:PATH"

  virtual void PutJob(const v1::Job& job) = 0;
  virtual void AddWorker(const v1::WorkerInfo& worker) = 0;  // To the coordinator's list.
  // Numbers it.
  virtual void AddEvent(v1::Event event) = 0;
  virtual void ForgetEvents(int64_t up_to_number) = 0;  // The next ones are numbered as before.
  virtual void StartEventsAgain() = 0;                  // From 1, as a new coordinator does.
  virtual void SetWorker(const v1::WorkerStatusResponse& worker) = 0;
  // What DumpRank answers for rank 0 of job "gpt"; others are not found.
  virtual void SetDump(const v1::DumpRankResponse& dump) = 0;
  virtual std::vector<std::string> delete_request_ids() const = 0;
};

// A running job "gpt": rank 0 attached on worker "w0", rank 1 placed on "w1" and silent.
v1::Job MakeJob();

// What `tessera` prints for these arguments, and how it ends.
struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};
CommandResult RunTessera(const std::vector<std::string>& args);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_FAKE_SERVER_H_
