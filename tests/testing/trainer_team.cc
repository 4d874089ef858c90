#include "tests/testing/trainer_team.h"

#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "tests/testing/toy_training.h"

namespace tessera::testing_support {
namespace {

std::vector<absl::Status> OnThreads(int count, const std::function<absl::Status(int)>& body) {
  std::vector<absl::Status> statuses(count);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

absl::Status FirstError(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace

SessionOptions ToyOptions(const LocalCluster& cluster, const std::string& job_id, int world_size,
                          int num_units) {
  SessionOptions options;
  options.coordinator_address = cluster.coordinator_address();
  options.worker_address = cluster.worker_address();
  options.job_id = job_id;
  options.model = ToyModel(num_units);
  options.config.world_size = world_size;
  options.config.groups[0].learning_rate = 0.01;
  options.config.groups[0].weight_decay = 0.1;
  options.config.collective_timeout = absl::Seconds(30);
  options.attach_timeout = absl::Seconds(30);
  options.operation_timeout = absl::Seconds(60);
  return options;
}

absl::StatusOr<TrainerTeam> TrainerTeam::Open(const SessionOptions& options) {
  return Open(options, std::vector<std::string>(options.config.world_size, options.worker_address));
}

absl::StatusOr<TrainerTeam> TrainerTeam::Open(const SessionOptions& options,
                                              const std::vector<std::string>& workers_by_rank) {
  std::vector<SessionOptions> by_rank(options.config.world_size, options);
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    by_rank[rank].rank = static_cast<int>(rank);
    by_rank[rank].worker_address = workers_by_rank[rank];
  }
  return OpenEach(by_rank);
}

absl::StatusOr<TrainerTeam> TrainerTeam::OpenEach(const std::vector<SessionOptions>& by_rank) {
  TrainerTeam team;
  team.sessions_.resize(by_rank.size());
  RETURN_IF_ERROR(FirstError(OnThreads(by_rank.size(), [&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(team.sessions_[rank], Session::Open(by_rank[rank]));
    return absl::OkStatus();
  })));
  return team;
}

absl::Status TrainerTeam::Reopen(const SessionOptions& options) {
  ASSIGN_OR_RETURN(sessions_[options.rank], Session::Open(options));
  return absl::OkStatus();
}

std::vector<absl::Status> TrainerTeam::Run(const std::function<absl::Status(Session*)>& body) {
  return OnThreads(sessions_.size(), [&](int rank) { return body(sessions_[rank].get()); });
}

absl::Status TrainerTeam::RunAll(const std::function<absl::Status(Session*)>& body) {
  return FirstError(Run(body));
}

absl::Status TrainerTeam::TrainTo(int64_t last_step) {
  return RunAll([&](Session* session) { return TrainToy(session, last_step); });
}

}  // namespace tessera::testing_support
