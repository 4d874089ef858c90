// The trainers of a job as threads of the test, one a rank, that do the same thing together.
// Thread-compatible. Destroying it detaches them.
#ifndef TESSERA_TESTS_TESTING_TRAINER_TEAM_H_
#define TESSERA_TESTS_TESTING_TRAINER_TEAM_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"

namespace tessera::testing_support {

// What a rank of the toy model needs to attach to the cluster.
SessionOptions ToyOptions(const LocalCluster& cluster, const std::string& job_id, int world_size,
                          int num_units = 3);

class TrainerTeam {
 public:
  // Opens one session a rank. Errors: as Session::Open, the first of any rank.
  static absl::StatusOr<TrainerTeam> Open(const SessionOptions& options);
  // The same, with the addresses of the workers that the ranks are on, by rank.
  static absl::StatusOr<TrainerTeam> Open(const SessionOptions& options,
                                          const std::vector<std::string>& workers_by_rank);

  // The same of ranks whose trainers differ, by rank.
  static absl::StatusOr<TrainerTeam> OpenEach(const std::vector<SessionOptions>& by_rank);

  // Runs `body` for every rank at once; the statuses by rank.
  std::vector<absl::Status> Run(const std::function<absl::Status(Session*)>& body);
  // The first error of Run.
  absl::Status RunAll(const std::function<absl::Status(Session*)>& body);
  absl::Status TrainTo(int64_t last_step);
  // Detaches this rank's trainer, or attaches another one.
  void Close(int rank) { sessions_[rank].reset(); }
  absl::Status Reopen(const SessionOptions& options);
  Session* session(int rank) const { return sessions_[rank].get(); }

 private:
  std::vector<std::unique_ptr<Session>> sessions_;
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_TRAINER_TEAM_H_
