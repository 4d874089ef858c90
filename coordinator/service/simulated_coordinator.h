// The coordinator's process in a simulation: the real core behind the real codecs, run as
// CoordinatorHost and MembershipService run it. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_COORDINATOR_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_COORDINATOR_H_

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/service/simulated_clock.h"
#include "coordinator/service/simulated_dice.h"
#include "coordinator/service/simulated_journal.h"
#include "coordinator/service/simulated_stream.h"
#include "proto/coordinator.pb.h"

namespace tessera::coordinator {

class SimulatedCoordinator {
 public:
  // `on_durable` sees the effects of each event once its records are durable.
  SimulatedCoordinator(const CoordinatorOptions& options, SimulatedDice* dice,
                       std::function<void(const Effects&)> on_durable);

  using Handler = absl::FunctionRef<absl::Status(Coordinator&, absl::Time now, Effects*)>;
  // As CoordinatorHost::Run. Errors: Unavailable  it died over it; the core's.
  absl::Status Run(Handler handler);
  bool Tick();  // Whether it was to be.
  absl::StatusOr<v1::RegisterWorkerResponse> Register(const v1::RegisterWorkerRequest& request);

  void Open(SimulatedStreamPtr stream) { streams_.push_back(std::move(stream)); }
  // Reads an event of one of the worker's streams, or sees that one is over.
  void ReadFrom(const WorkerId& worker);

  // As CoordinatorHost::SendCommand.
  bool Send(const WorkerId& worker, const Command& command);
  bool Hears(const WorkerId& worker) const { return current_.count(worker) > 0; }

  // It believes that the worker's connection is broken.
  void Cut(const WorkerId& worker);

  // The process dies, and perhaps the machine with it; and the next one begins.
  void Restart(bool power_loss = false);
  // It dies in one of the next events: around the writes to the journal, or among what it sends.
  void DieSoon() { points_to_death_ = 1 + dice_->Roll(16); }

  // Copies its journal or, where it has a copy, dies, and the next one begins with that. Whether it
  // has gone back.
  bool CopyOrGoBack();
  // All workers have come since.
  void EndTakeOver();
  bool takes_over() const { return takes_over_; }

  const Coordinator& core() const { return core_; }
  const SimulatedClock& clock() const { return clock_; }
  void Sleep(absl::Duration duration) { clock_.Pass(duration); }
  void SetWallClock(absl::Duration step) { clock_.SetWall(step); }
  int num_restarts() const { return num_restarts_; }
  // So many of the next writes fail.
  void FailJournal(int times) { journal_failures_ = times; }

 private:
  // A point to die at. Whether it has.
  bool Dies();
  absl::Status Write(const Effects& effects);
  void Keep(const Effects& effects);  // Without a fault.
  absl::Status Admit(const SimulatedStreamPtr& stream, const v1::WorkerEvent& first);
  absl::Status OnEvent(const Sender& sender, const v1::WorkerEvent& event);
  void Read(const SimulatedStreamPtr& stream);
  void End(const SimulatedStreamPtr& stream);
  void TakeOverUntil(absl::Time until);

  const CoordinatorOptions options_;
  SimulatedDice* const dice_;
  const std::function<void(const Effects&)> on_durable_;
  SimulatedClock clock_;
  SimulatedJournal journal_;
  Coordinator core_;
  int num_restarts_ = 0;
  int journal_failures_ = 0;
  int points_to_death_ = 0;                  // 0: none is meant.
  bool takes_over_ = false;                  // What workers hold, as its journal is older.
  std::vector<SimulatedStreamPtr> streams_;  // That it has not left.
  std::map<WorkerId, SimulatedStreamPtr> current_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_COORDINATOR_H_
