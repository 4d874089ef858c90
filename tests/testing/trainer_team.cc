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
  TrainerTeam team;
  const int world_size = options.config.world_size;
  team.sessions_.resize(world_size);
  RETURN_IF_ERROR(FirstError(OnThreads(world_size, [&](int rank) -> absl::Status {
    SessionOptions own = options;
    own.rank = rank;
    own.worker_address = workers_by_rank[rank];
    ASSIGN_OR_RETURN(team.sessions_[rank], Session::Open(own));
    return absl::OkStatus();
  })));
  return team;
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
