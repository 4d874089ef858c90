// Clients that try to take a coordinator from everybody else, each with a connection and a thread
// of its own, again and again until they are stopped:
//
//   kSilent        opens a stream and says nothing
//   kLongRequest   asks for a job by a name of 60 MiB
//   kSlowRequest   sends the beginning of a request, and no more
//   kEndless       sends a request that is said to have 4 GiB, as fast as it is taken
//   kWatches       watches a job that does not change
//   kAwaits        waits for a hand-over that nobody makes
//   kTakesNothing  asks for a job with a model of 16 MiB, and does not read it
//   kReadsNothing  asks for the workers 60 times at once, and reads nothing from its socket
//   kCreates       creates jobs with such models, and deletes one where there are too many
//   kResets        begins calls and resets each at once, as fast as they are taken
//
// Those that a gRPC client cannot be, kSlowRequest, kEndless, kReadsNothing and kResets, speak
// HTTP/2 by hand, over the coordinator's Unix socket; the others come with a certificate. Thread-safe.
#ifndef TESSERA_TESTS_TESTING_HOSTILE_CLIENTS_H_
#define TESSERA_TESTS_TESTING_HOSTILE_CLIENTS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "net/transport_security.h"

namespace tessera::testing_support {

enum class Hostility {
  kSilent,
  kLongRequest,
  kSlowRequest,
  kEndless,
  kWatches,
  kAwaits,
  kTakesNothing,
  kReadsNothing,
  kCreates,
  kResets,
};
constexpr size_t kNumHostilities = 10;

class HostileClients {
 public:
  struct Options {
    std::string address;                            // host:port
    TlsFiles certificate;                           // Of the hostile client.
    std::string unix_socket;                        // Empty: none of those that need it.
    std::array<int, kNumHostilities> clients = {};  // Of each kind.
  };
  // Makes the job that they watch.
  // Errors: the coordinator's
  static absl::StatusOr<std::unique_ptr<HostileClients>> Start(const Options& options);
  ~HostileClients();  // Stops them.

  // Calls of this kind that have ended, or, of those that wait, started.
  int64_t NumCalls(Hostility kind) const { return num_calls_[static_cast<size_t>(kind)]; }
  // What they were told, of all kinds: each message once, without numbers.
  std::set<std::string> Answers(Hostility kind) const;

 private:
  explicit HostileClients(const Options& options) : options_(options) {}

  // Of a connection that nobody shares.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect() const;
  void Run(Hostility kind, int number);
  absl::Status RunOnce(Hostility kind, int number, const std::shared_ptr<grpc::Channel>& channel);
  absl::Status Create(const std::shared_ptr<grpc::Channel>& channel, const std::string& job);
  void SendByHand(Hostility kind) const;
  void Note(Hostility kind, const absl::Status& status);

  const Options options_;
  std::string model_;  // A CreateJobRequest without names.
  std::string long_request_;
  std::atomic<bool> stopped_{false};
  std::array<std::atomic<int64_t>, kNumHostilities> num_calls_ = {};
  mutable absl::Mutex mu_;
  std::map<Hostility, std::set<std::string>> answers_ ABSL_GUARDED_BY(mu_);
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);  // To be cancelled.
  std::vector<std::thread> threads_;

  class Call;
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_HOSTILE_CLIENTS_H_
