// Values that a process outside the job sets, as far as this rank has them: complete, and not yet
// part of the state (docs/adr/0030).
//
//   engine ── Offer ──► its vote on a step ──► all ranks offered the same: Read, vote, decide
//          ── Settle ──► source
//
// What was offered stays as it is until it is settled, or the epoch ends. Called by the engine's
// thread.
#ifndef TESSERA_WORKER_ENGINE_PUT_SOURCE_H_
#define TESSERA_WORKER_ENGINE_PUT_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "job/job_memory.h"
#include "layout/values.h"
#include "worker/engine/sharded_optimizer.h"

namespace tessera {

class PutSource {
 public:
  virtual ~PutSource() = default;
  // The put that this rank would take; 0: none. `decided`: the last one that was, which this rank
  // has no more.
  virtual uint64_t Offer(uint64_t decided) = 0;

  // --- Of what was offered ---
  // By parameter of the job whose moments are set: how many updates it has had then.
  virtual const std::map<int, int64_t>& update_counts() const = 0;
  // Reads what it has of the segments to where `values` says.
  // Errors: DataLoss  it is not what was stored.
  virtual absl::Status Read(
      const std::vector<ShardSegment>& segments,
      absl::FunctionRef<Values(StateArray, const ShardSegment&)> values) const = 0;
  // Buffers of the job that are set, whole, on each rank; rising.
  virtual std::vector<int> buffers() const = 0;
  // All bytes of one of them. Errors: as Read.
  virtual absl::Status ReadBuffer(int buffer, std::byte* values) const = 0;

  enum class Outcome {
    kNotYet,   // Not all ranks offered it: it is offered again.
    kDecided,  // It is a part of the state.
    kVoid,     // Some rank could not read it: no rank takes it, ever.
  };
  // `why`: of a void one.
  virtual void Settle(Outcome outcome, const std::string& why) = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_PUT_SOURCE_H_
