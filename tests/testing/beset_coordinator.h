// A coordinator's process with hostile clients, and one honest worker and one honest trainer: the
// worker's stream, and a job of one rank whose steps are reported and measured. For the test and
// the benchmark. Thread-compatible.
#ifndef TESSERA_TESTS_TESTING_BESET_COORDINATOR_H_
#define TESSERA_TESTS_TESTING_BESET_COORDINATOR_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/coordinator_process.h"
#include "coordinator/service/test_worker.h"
#include "grpcpp/grpcpp.h"
#include "net/test_certificates.h"
#include "tests/testing/hostile_clients.h"

namespace tessera::testing_support {

class BesetCoordinator {
 public:
  // `folder` exists and is empty. `flags`: the coordinator's, besides its addresses.
  // Errors: NotFound  no openssl command; those of CoordinatorProcess
  static absl::StatusOr<std::unique_ptr<BesetCoordinator>> Start(
      const std::string& folder, const std::vector<std::string>& flags);
  ~BesetCoordinator();

  absl::Status Beset(const std::array<int, kNumHostilities>& clients);
  const HostileClients& hostile() const { return *hostile_; }

  // One step of the trainer: it is reported, and seen to be committed. How long each of the calls
  // took that look at the job.
  absl::StatusOr<std::vector<absl::Duration>> Train();

  // Of the coordinator's process.
  int64_t PeakResidentBytes() const;
  int NumThreads() const;
  std::string Log() const;  // What it has written.

 private:
  explicit BesetCoordinator(std::string folder) : folder_(std::move(folder)) {}
  absl::Status StartTraining();
  absl::StatusOr<v1::Job> GetJob();

  const std::string folder_;
  std::unique_ptr<TestCertificates> certificates_;
  std::unique_ptr<coordinator::CoordinatorProcess> process_;
  std::unique_ptr<coordinator::TestWorker> worker_;
  std::shared_ptr<grpc::Channel> trainer_;
  std::unique_ptr<HostileClients> hostile_;
  int64_t step_ = 0;
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_BESET_COORDINATOR_H_
