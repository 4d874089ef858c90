// The demo: a cluster of real processes trains a model, loses a trainer, and is held against the
// same training without it. Phases run one after the other; each needs those before it.
#ifndef TESSERA_TESTS_DEMO_DEMO_RUN_H_
#define TESSERA_TESTS_DEMO_DEMO_RUN_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/demo/child_process.h"
#include "tests/demo/demo_report.h"
#include "tests/demo/progress.h"

namespace tessera::demo {

struct DemoOptions {
  std::string coordinator_binary, worker_binary, executor_binary, trainer_binary;
  std::string text;
  std::string output_dir;  // Logs, journal, model; made if missing.
  int world_size = 4;
  int64_t steps = 60;
  int batch = 4;
  int64_t context = 64;
  int64_t width = 256;
  int64_t blocks = 4;
  bool kill_trainer = true;
  bool compare_unsharded = true;
};

// From now on `signal` ends a run, with Cancelled, rather than the process. DemoSignal: the last
// one that came, or 0.
void EndDemoOnSignal(int signal);
int DemoSignal();

class DemoRun {
 public:
  explicit DemoRun(DemoOptions options) : options_(std::move(options)) {}
  // Kills all that it started and removes the folder of the sockets; output_dir stays.
  ~DemoRun();

  // Errors: what kept a phase from succeeding, naming the process and its log; Cancelled.
  absl::StatusOr<DemoReport> Run();

 private:
  struct Trainer {
    std::unique_ptr<ChildProcess> process;
    bool finished = false;
  };

  absl::Status MakeFolders();
  absl::Status StartCluster();
  absl::Status Train();
  absl::Status StartTrainer(int rank, bool replace);
  absl::Status OnLine(int rank, const std::string& line);
  absl::Status Committed(int rank, int64_t step, double loss);
  absl::Status KillAndReplace(int rank);
  void SampleMemory();
  absl::Status TrainUnsharded();
  std::vector<std::string> TrainerArgs(const std::string& mode, int rank) const;
  std::string LogPath(const std::string& name) const {
    return options_.output_dir + "/" + name + ".log";
  }

  const DemoOptions options_;
  DemoReport report_;
  std::unique_ptr<ChildProcess> coordinator_, worker_;
  std::string coordinator_address_, worker_address_;
  std::string socket_dir_;  // Empty: not made yet.
  std::vector<Trainer> trainers_;
  std::vector<std::vector<double>> rank_losses_;       // [step - 1][rank]; NaN: not yet.
  std::vector<std::pair<int64_t, double>> last_loss_;  // By rank: step and loss, maybe uncommitted.
  std::vector<double> step_seconds_;
  std::vector<double> compute_seconds_;  // Of forward and backward alone.
  std::optional<Progress> computing_;
  std::vector<int> step_redone_;
  absl::Time killed_at_ = absl::InfinitePast();
  std::function<void(int64_t step)> on_step_complete_;
};

}  // namespace tessera::demo

#endif  // TESSERA_TESTS_DEMO_DEMO_RUN_H_
