// What a worker of a simulation does about the checkpoints of one job: the part of HostedJob and
// SaveTracker that the coordinator sees. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_SAVES_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_SAVES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "coordinator/service/simulated_save_truth.h"
#include "proto/coordinator.pb.h"

namespace tessera::coordinator {

class SimulatedSaves {
 public:
  using Emit = std::function<void(v1::WorkerEvent)>;
  SimulatedSaves(const v1::Job& job, SimulatedSaveTruth* truth, Emit emit)
      : job_id_(job.job_id()),
        generation_(job.generation()),
        truth_(truth),
        emit_(std::move(emit)) {}

  void Want(const v1::RequestedSave& requested);
  // What the rank votes for with its next step; 0: for none.
  int64_t WantedBy(int32_t rank) const;
  bool IsUnderWay(int32_t rank) const { return open_.count(rank) > 0; }
  // The rank begins what the step decided.
  void Begin(int32_t rank, SimulatedSave* save);
  // The rank gets on with what it has begun.
  void Work(int32_t rank);
  void EndEpoch();
  // The daemon ended, and the next one knows nothing of them.
  void Forget();

  std::vector<v1::WorkerEvent> Unacknowledged() const;

 private:
  struct Open {
    SimulatedSave* save;
    bool has_written = false;
  };
  v1::SaveReport ReportOf(const SimulatedSave& save, int32_t rank,
                          v1::SaveReport::Phase phase) const;
  void Report(v1::SaveReport report);
  void OnEnd(v1::SaveReport report);

  const std::string job_id_;
  const int64_t generation_;
  SimulatedSaveTruth* const truth_;
  const Emit emit_;
  v1::RequestedSave requested_;
  int64_t ended_request_ = 0;
  std::map<int32_t, Open> open_;  // By rank.
  std::deque<v1::SaveReport> ended_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_SAVES_H_
