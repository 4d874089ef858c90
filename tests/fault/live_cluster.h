// A cluster of real processes for tests of clients that read, set and save the state of a job, and
// of what dies meanwhile. The job's trainers are threads of the test and take a step when told; its
// values are known exactly:
//
//   big.w     of some MiB, as many as a test needs; never updated
//   small.w   element i loses (step + i % 7 + R) / 4 in each step, R being the mean of the ranks'
//             numbers: all of it exact in fp32
//
// It has two ranks, or world_size_, a power of two. They are on worker "w"; with split_ the last
// one is on "x". A test fixture; thread-compatible.
#ifndef TESSERA_TESTS_FAULT_LIVE_CLUSTER_H_
#define TESSERA_TESTS_FAULT_LIVE_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "tessera/session.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/trainer_team.h"

namespace tessera {

class LiveCluster : public ProcessCluster {
 protected:
  // More than fits on the way from a worker to a client, or back.
  static constexpr int64_t kManyElements = 8 << 20;
  static constexpr int64_t kFewElements = 1000;

  LiveCluster() { world_size_ = 2; }
  void TearDown() override;

  // `faults_of_last`: of the executors of the last worker.
  void StartJob(int64_t big_numel, const std::string& faults_of_last = "");
  // Of all ranks, once; by rank. Not repeated where it is undone.
  std::vector<absl::Status> TryStep();
  // Of all ranks, over whatever failures; what small_ has to be then.
  void Step();

  // The real `tessera`, asking `address` or else the coordinator.
  struct Client {
    std::unique_ptr<demo::ChildProcess> process;
    std::string log;  // Of what it says is wrong.
  };
  Client StartClient(std::vector<std::string> args, const std::string& address = "");
  // Waits for its end, which is to come by itself; takes steps meanwhile if `trains`.
  testing_support::CliResult Await(Client client, bool trains = false);
  testing_support::CliResult RunClient(std::vector<std::string> args) {
    return Await(StartClient(std::move(args)));
  }
  // A file of another big.w, which is returned: of each seed another one.
  std::vector<float> WriteBig(const std::string& path, const std::string& seed) const;
  // Takes steps until `tessera put` of this file has ended; small_ and big_ as they are to be then.
  // Another one that has not quite ended is waited for.
  void PutBig(const std::string& path, const std::vector<float>& values);

  // What a client and each trainer read is big_ and small_.
  void ExpectRead();
  void ExpectTrainersSee();

  // Files without a name that it has open in /tmp: of readings and puts.
  static int CountSpoolFiles(int pid);
  static int CountSockets(int pid);
  // Executors that were given a put.
  int CountHolders() const;
  // A worker, and in the same moment all executors that it has.
  static void KillWhole(demo::ChildProcess* worker);

  absl::StatusOr<v1::Job> TryJob(absl::Duration timeout = absl::Seconds(1)) const;
  v1::Job Job() const;
  void AwaitState(v1::JobState state) const;
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  std::vector<float> big_, small_;
  int64_t steps_ = 0;                   // That were taken.
  bool optimizer_in_backward_ = false;  // Of the job.
  std::optional<testing_support::TrainerTeam> team_;

 private:
  absl::Status StepOf(Session* session) const;
  int num_clients_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_FAULT_LIVE_CLUSTER_H_
