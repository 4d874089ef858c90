// A job of two ranks whose executors are processes, and a log of all that they do in one folder
// (disk_log/disk_log.h), with every kind of state that a checkpoint holds: parameters of some pages
// and of some bytes, moments, a buffer, bytes of each trainer. Thread-compatible.
#ifndef TESSERA_TESTS_FAULT_WATCHED_TRAINING_H_
#define TESSERA_TESTS_FAULT_WATCHED_TRAINING_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tessera/local_cluster.h"
#include "tests/fault/disk_log/disk_log.h"
#include "tests/testing/trainer_team.h"

namespace tessera {

class WatchedTraining {
 public:
  static constexpr int kWorldSize = 2;
  static constexpr int kNumDevices = 16;

  static absl::StatusOr<std::unique_ptr<WatchedTraining>> Start();
  ~WatchedTraining();

  const std::string& folder() const { return folder_; }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  disk_log::DiskLog& log() { return *log_; }
  testing_support::TrainerTeam& team() { return *team_; }
  // Another job on the same devices, whose executors are watched too.
  absl::StatusOr<testing_support::TrainerTeam> OpenAnother(const std::string& job,
                                                           int world_size = kWorldSize) const;

  absl::Status TrainStep();  // One more.
  int64_t step() const { return step_; }
  // By rank.
  std::vector<absl::Status> SaveCheckpoint(const std::string& name, int keep_newest = 0);
  std::vector<absl::Status> SaveModel(const std::string& name);

 private:
  WatchedTraining() = default;
  absl::Status Open();

  std::string folder_;
  int64_t step_ = 0;
  std::unique_ptr<disk_log::DiskLog> log_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<testing_support::TrainerTeam> team_;
};

// What rank 0 reads of all parameters.
absl::StatusOr<std::vector<float>> ValuesOf(testing_support::TrainerTeam* team);

}  // namespace tessera

#endif  // TESSERA_TESTS_FAULT_WATCHED_TRAINING_H_
