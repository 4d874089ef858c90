// What a worker of a simulation does about puts: the parts of PutForwarder, JobPut, ExecutorPuts
// and PutRelay that the coordinator sees. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_PUTS_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_PUTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/service/simulated_put_line.h"

namespace tessera::coordinator {

// The puts of one job that the worker holds.
class SimulatedPuts {
 public:
  // --- the session's side ---
  void Offer(uint64_t put);
  void Withdraw(uint64_t put);
  // No rank of the worker votes for it any more, and another one than this is not offered.
  bool IsOver(uint64_t put) const;
  const std::string& failure() const { return failure_; }
  // Of a put that all of the worker's ranks have: the version; 0: they have it not, or not yet.
  int64_t AppliedAt(uint64_t put) const;
  bool IsDecided(uint64_t put) const { return put == decided_; }

  // --- the ranks' side ---
  // What the rank votes for with its step; 0: for none.
  uint64_t VoteOf(int32_t rank);
  void Settle(int32_t rank) { voted_.erase(rank); }
  void Void(int32_t rank, const std::string& why);
  // The version with the put is decided, as the group page knows from now on.
  void Decide(uint64_t put, int64_t step);
  void Apply(int32_t rank, int64_t step) { applied_[rank] = step; }
  void EndEpoch() { voted_.clear(); }
  // The daemon ended, and the next one knows what is decided.
  void Forget();

  // What other workers need to know of the decision about `step`; and what they said.
  std::string DecisionOf(int64_t step) const;
  void Learn(const std::string& decision);
  void LearnAll(const SimulatedPuts& other);

 private:
  enum class Phase { kNone, kOffered, kLeaving };

  Phase phase_ = Phase::kNone;
  uint64_t put_ = 0;
  std::string failure_;
  std::map<int32_t, uint64_t> voted_;   // By rank: a vote that is under way.
  std::map<int32_t, int64_t> applied_;  // By rank: the last version.
  uint64_t decided_ = 0;                // The last one.
  int64_t decided_step_ = 0;
};

// A worker's session for one put.
class SimulatedPutSession {
 public:
  explicit SimulatedPutSession(SimulatedPutLinePtr line) : line_(std::move(line)) {}

  // Gets on. `puts`: of the job, where the worker holds it now; else null. False: it is over.
  bool Work(const std::shared_ptr<SimulatedPuts>& puts);
  // The daemon ends. How much of what it has said is there already, nobody knows.
  void End(size_t num_sent);
  size_t num_said() const { return line_->up.size(); }

 private:
  bool Obey(const v1::PutCommand& command, const std::shared_ptr<SimulatedPuts>& puts);
  bool Follow();
  // Says it, as the last thing. False.
  bool Finish(v1::PutEvent event);
  bool Fail(const std::string& why);

  SimulatedPutLinePtr line_;
  uint64_t put_ = 0;
  std::weak_ptr<SimulatedPuts> puts_;  // Of what it is offered to.
  bool is_offered_ = false, is_wanted_ = true, is_withdrawn_ = false, has_ended_ = false;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_PUTS_H_
