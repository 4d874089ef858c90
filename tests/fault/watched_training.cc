#include "tests/fault/watched_training.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "tessera/checkpoint.h"
#include "tests/testing/toy_training.h"

namespace tessera {

using disk_log::DiskLog;
using testing_support::ReadAll;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

absl::StatusOr<std::unique_ptr<WatchedTraining>> WatchedTraining::Start() {
  std::unique_ptr<WatchedTraining> training(new WatchedTraining());
  RETURN_IF_ERROR(training->Open());
  return training;
}

absl::Status WatchedTraining::Open() {
  folder_ = "/tmp/tessera-watched-XXXXXX";
  if (mkdtemp(folder_.data()) == nullptr) return ErrnoStatus(errno, "make a folder in /tmp");
  ASSIGN_OR_RETURN(log_, DiskLog::Start(folder_));
  LocalCluster::Options options;
  options.num_devices = kNumDevices;
  options.executor_binary = "worker/tessera-executor";
  options.executor_flags = {"--direct-write-bytes=4096"};  // A block of the largest parameter.
  ASSIGN_OR_RETURN(cluster_, LocalCluster::Start(options));
  ASSIGN_OR_RETURN(TrainerTeam team, OpenAnother("toy"));
  team_ = std::make_unique<TrainerTeam>(std::move(team));
  return absl::OkStatus();
}

WatchedTraining::~WatchedTraining() {
  team_.reset();
  cluster_.reset();
  log_.reset();
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

absl::StatusOr<TrainerTeam> WatchedTraining::OpenAnother(const std::string& job,
                                                         int world_size) const {
  SessionOptions options = ToyOptions(*cluster_, job, world_size, /*num_units=*/2);
  options.model.units[0].parameters[0].shape = {64, 64};  // Four pages.
  return TrainerTeam::Open(options);
}

absl::Status WatchedTraining::TrainStep() { return team_->TrainTo(++step_); }

std::vector<absl::Status> WatchedTraining::SaveCheckpoint(const std::string& name,
                                                          int keep_newest) {
  return team_->Run([&](Session* session) {
    CheckpointContents contents;
    contents.trainer_state = absl::StrCat("rank ", session->rank(), " at step ", step_);
    if (session->rank() == 0)
      contents.buffers = {{"seen", DType::kInt64, {1}, std::string(8, static_cast<char>(step_))}};
    SaveOptions options;
    options.keep_newest = keep_newest;
    return ::tessera::SaveCheckpoint(session, Path(name), contents, options);
  });
}

std::vector<absl::Status> WatchedTraining::SaveModel(const std::string& name) {
  return team_->Run([&](Session* session) { return session->Save(Path(name)); });
}

absl::StatusOr<std::vector<float>> ValuesOf(TrainerTeam* team) {
  std::vector<float> values;
  RETURN_IF_ERROR(team->RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<float> all, ReadAll(session));
    if (session->rank() == 0) values = all;
    return absl::OkStatus();
  }));
  return values;
}

}  // namespace tessera
