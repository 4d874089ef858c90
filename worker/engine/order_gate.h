// What an engine asks and tells the coordinator, of which it knows nothing itself.
#ifndef TESSERA_WORKER_ENGINE_ORDER_GATE_H_
#define TESSERA_WORKER_ENGINE_ORDER_GATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "worker/engine/order_tracker.h"

namespace tessera {

// Asks the coordinator where the rank may not decide alone. Called by the engine's thread.
class OrderGate {
 public:
  virtual ~OrderGate() = default;
  // Waits for the release. Errors: FailedPrecondition  the ranks' orders differ (the message names
  // both); Aborted  the epoch ended; DeadlineExceeded  no answer in time.
  virtual absl::Status AwaitRelease(const OrderEntry& entry, const OrderPlace& place) = 0;
  // Ends AwaitRelease, now or later in the epoch, with `reason`: concurrent work has failed, and
  // the awaited event may need that work. By any thread.
  virtual void Interrupt(const absl::Status& reason) = 0;
  // May keep the report back, to travel with those of steps that follow within kLongestReportDelay,
  // until the engine waits longer for its trainer (not: for other ranks), or ends.
  virtual void ReportStep(Step step, uint64_t order_hash) = 0;
  virtual bool keeps_reports_back() const = 0;
  virtual void SendReports() = 0;
  static constexpr absl::Duration kLongestReportDelay = absl::Milliseconds(1);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_ORDER_GATE_H_
