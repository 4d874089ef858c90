// A cluster of real processes for tests that end them: coordinator, worker, its executors and one
// trainer a rank, which train the toy model and save it. Everything is in a folder of its own;
// after a failure the logs are shown. A test fixture; thread-compatible.
#ifndef TESSERA_TESTS_FAULT_PROCESS_CLUSTER_H_
#define TESSERA_TESTS_FAULT_PROCESS_CLUSTER_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/demo/child_process.h"

namespace tessera {

class ProcessCluster : public testing::Test {
 protected:
  static constexpr int kWorldSize = 3;
  static constexpr int64_t kSteps = 30;

  void SetUp() override;
  void TearDown() override;  // Kills what still runs; removes the folder.

  // Again: on the same port, with the same journal. Faults: see base/fault_point.h.
  void StartCoordinator(const std::string& faults = "");
  void StartWorker(const std::string& executor_faults = "");
  // Worker second_id_ with devices for the last ranks, for a job that split_ divides.
  void StartSecondWorker(const std::string& executor_faults = "");
  void StartSpareWorker();  // Another one, "w2", on which the whole job has room.
  // `replace`: waits while another trainer is attached.
  void StartTrainer(int rank, bool replace = false);
  void StartAll(const std::string& executor_faults = "");

  // Has a worker's command line say how its ranks meet others', and run where hosts_ says.
  void PlaceOnHost(size_t host, std::vector<std::string>* args) const;

  void Resume();

  // Waits until `rank` begins `step`.
  void AwaitStep(int rank, int64_t step);
  // Waits for the end of `rank`'s trainer; its exit status.
  int AwaitEnd(int rank);
  // Waits until all trainers end well; the final model's bytes.
  std::string Finish();

  // The final model of a run without failures; made once for all tests of a process.
  static const std::string& UndisturbedModel();

  std::string model_path() const { return folder_ + model_name_; }
  std::string coordinator_address() const {
    return (hosts_.empty() ? "127.0.0.1" : hosts_[0].address) + ":" + std::to_string(port_);
  }
  // Where workers and trainers find the coordinator.
  std::string dialled_address() const {
    return proxy_address_.empty() ? coordinator_address() : proxy_address_;
  }
  std::string coordinator_socket() const { return "unix:" + folder_ + "/coordinator.sock"; }
  std::string worker_address() const { return "unix:" + folder_ + "/worker.sock"; }

  std::string folder_;
  int port_ = 0;
  std::map<int, int64_t> last_step_;  // That each rank began.
  int64_t pause_at_ = 0;  // Trainers wait before this step until Resume(); 0: they never do.
  // Of the job and of the coordinator; unset: the default.
  std::optional<absl::Duration> collective_timeout_, worker_timeout_;
  // Where a process runs: in the network namespace of another one, with an address there.
  struct Host {
    int pid = 0;
    std::string address;
  };
  // Of the coordinator (its pid is not used: it runs in the test's namespace), of "w" and of "x";
  // empty: all are of this machine, and meet by its loopback interface.
  std::vector<Host> hosts_;
  int64_t steps_ = kSteps;  // That trainers take.
  int world_size_ = kWorldSize;
  int group_size_ = 0;                      // Of a hybrid job; 0: not hybrid.
  std::vector<std::string> trainer_flags_;  // In addition to the others here.
  // Worker "w" has devices for all ranks but the last ones, so the job needs worker "x" too.
  bool split_ = false;
  int on_second_ = 1;  // Ranks that are left for the second worker.
  std::string second_id_ = "x";
  std::string proxy_address_;  // Between them and the coordinator; empty: there is none.
  std::string model_name_ = "/model.safetensors";
  std::string journal_name_ = "/journal";
  // Whose user trainers are, which find the coordinator at its socket; -1: the test's, by TCP.
  int trainer_uid_ = -1;
  std::vector<std::string> coordinator_flags_;  // In addition to the others here.
  bool debuggable_ = true;                      // Workers and executors: the test looks into them.
  std::string keep_memory_ = "0";               // Of workers, while their daemon is away.
  std::string daemon_faults_;  // Of worker "w" but its executors: see base/fault_point.h.
  std::unique_ptr<demo::ChildProcess> coordinator_, worker_, second_worker_, spare_worker_;
  std::vector<std::unique_ptr<demo::ChildProcess>> trainers_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_FAULT_PROCESS_CLUSTER_H_
