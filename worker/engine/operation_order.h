// Where a rank is: the step that it has committed, and its place in the order of operations that
// all ranks share. Both are shown in the rank's control page.
//
// Confined to the engine's thread, except for step().
#ifndef TESSERA_WORKER_ENGINE_OPERATION_ORDER_H_
#define TESSERA_WORKER_ENGINE_OPERATION_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "layout/dtype.h"
#include "shm/control_page.h"
#include "worker/engine/group_page.h"
#include "worker/engine/order_gate.h"
#include "worker/engine/order_tracker.h"

namespace tessera {

class OperationOrder {
 public:
  // Not owned; all outlive this.
  OperationOrder(OrderGate* gate, const GroupPage* group, ControlPage* control)
      : gate_(*gate), group_(*group), control_(*control) {}

  // The epoch begins with `step` committed.
  void Start(int64_t step);
  // Committed on this rank. The stream's work reads it too: it changes only while that is idle.
  int64_t step() const { return step_; }
  // The step under way. Initial values make step 0, with an order of its own, so that step 1
  // records what later steps repeat.
  int64_t StepUnderWay() const;
  int64_t sequence() const { return tracker_.sequence(); }

  // The rank issues an operation: waits for the coordinator's release where the record does not
  // have it. Errors: those of OrderGate::AwaitRelease.
  absl::Status Issue(OpKind kind, int unit, int64_t count_elements, DType dtype);
  // As OrderTracker has them.
  bool ForwardEnded() { return tracker_.ForwardEnded(); }
  void UpcomingUnshards(const GatherLimit& limit, std::vector<int>* units) const {
    tracker_.UpcomingUnshards(limit, units);
  }

  void EndPass();
  void CommitInitialValues();
  // Version `next` is whole on this rank, and decided: continues from it. A write is reported to
  // the coordinator at once; of a step, returns the hash that is to be reported.
  uint64_t CommitStep(int64_t next);
  void CommitWrite(int64_t next);

 private:
  void PublishProgress();  // A step or pass begins.
  void PublishCommitted(int64_t next);

  OrderGate& gate_;
  const GroupPage& group_;
  ControlPage& control_;
  OrderTracker tracker_;
  int64_t step_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_OPERATION_ORDER_H_
