// A worker's daemon in a simulation: the parts of CoordinatorAgent and Keeper that the coordinator
// sees. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_WORKER_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_WORKER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/service/simulated_dice.h"
#include "coordinator/service/simulated_held_job.h"
#include "coordinator/service/simulated_put_line.h"
#include "coordinator/service/simulated_puts.h"
#include "coordinator/service/simulated_stream.h"
#include "coordinator/service/simulated_truth.h"

namespace tessera::coordinator {

class SimulatedWorker {
 public:
  using Jobs = std::map<std::string, std::unique_ptr<SimulatedHeldJob>>;
  // What is true of a job that it is told to prepare.
  using FindTruth = std::function<SimulatedTruth*(const JobId& job, Generation generation)>;

  SimulatedWorker(std::string id, int num_devices, SimulatedDice* dice, FindTruth find_truth,
                  FindPutLine find_put_line);

  // --- the line to the coordinator ---
  v1::RegisterWorkerRequest RegisterRequest() const;
  void OnRegistered(const v1::RegisterWorkerResponse& response);
  // Opens a stream, and says on it what the coordinator may have missed.
  SimulatedStreamPtr Connect();
  // Takes the next command of the stream, or sees that the stream is over.
  void Read();
  void Disconnect();
  void Heartbeat();

  // --- what happens here ---
  // A new life, without memory.
  void Boot();
  // The daemon ends, and the next one has its memory.
  void ReplaceDaemon();
  void Work();
  // While it reaches the coordinator.
  void WorkOnPuts();

  WorkerId id() const { return WorkerId(id_); }
  Incarnation incarnation() const { return Incarnation(incarnation_); }
  bool connected() const { return stream_ != nullptr; }
  // Whether the coordinator has taken its stream.
  bool IsAdmitted() const { return stream_ != nullptr && stream_->sender.has_value(); }
  const Jobs& jobs() const { return jobs_; }
  // Null: it does not hold this generation of the job.
  SimulatedHeldJob* Find(const JobId& job, Generation generation) const;
  std::string Describe() const;  // For a person.

 private:
  void Emit(v1::WorkerEvent event);
  void Handle(const v1::CoordinatorCommand& command);
  void Prepare(const v1::PrepareEpoch& prepare);
  void Start(const v1::StartEpoch& start);
  void Drop(const v1::DropJob& drop);
  void BeginPut(const v1::StagePut& stage);
  void EndPuts();
  void ReportFailure(const std::string& job, int64_t generation, int64_t epoch,
                     const std::string& reason);
  SimulatedHeldJob* Find(const std::string& job, int64_t generation) const;
  v1::WorkerEvent HeartbeatEvent() const;

  const std::string id_;
  const int num_devices_;
  SimulatedDice* const dice_;
  const FindTruth find_truth_;
  const FindPutLine find_put_line_;
  int64_t life_ = 0;         // Of this daemon's memory.
  int64_t incarnation_ = 0;  // 0: none yet.
  SimulatedStreamPtr stream_;
  Jobs jobs_;
  struct PutSession {
    JobId job;
    Generation generation;
    SimulatedPutSession session;
  };
  std::vector<PutSession> put_sessions_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_WORKER_H_
