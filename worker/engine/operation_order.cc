#include "worker/engine/operation_order.h"

#include "base/status_macros.h"

namespace tessera {

void OperationOrder::Start(int64_t step) {
  step_ = step;
  control_.committed_step.store(step);
  control_.writes.store(group_.decisions[step % 2].writes.load(std::memory_order_relaxed));
  // Before the first values the numbers in the page mean nothing.
  const int64_t trained_step = group_.decisions[step % 2].trained_step.load();
  control_.trained_step.store(control_.initialized.load() != 0 ? trained_step : 0);
  PublishProgress();
  // Last: until then the rank counts as in the middle of a step.
  control_.within_step.store(0);
}

int64_t OperationOrder::StepUnderWay() const {
  return control_.initialized.load(std::memory_order_relaxed) != 0 ? step_ + 1 : step_;
}

absl::Status OperationOrder::Issue(OpKind kind, int unit, int64_t count_elements, DType dtype) {
  const OrderEntry entry = {kind, unit, dtype, count_elements};
  if (tracker_.Check(entry) == OrderVerdict::kAsk) {
    // Only what the record does not have next costs a trip to the coordinator.
    RETURN_IF_ERROR(
        gate_.AwaitRelease(entry, {StepUnderWay(), tracker_.pass(), tracker_.sequence()}));
  }
  // An operation whose release does not come was issued by no rank.
  tracker_.Issued(entry);
  // From here on no other process could continue the step in this rank's place.
  if (kind == OpKind::kUnshard || kind == OpKind::kReduce)
    control_.within_step.store(1, std::memory_order_relaxed);
  control_.progress_sequence.store(tracker_.sequence(), std::memory_order_relaxed);
  return absl::OkStatus();
}

void OperationOrder::EndPass() {
  tracker_.PassEnded();
  PublishProgress();
}

void OperationOrder::CommitInitialValues() {
  tracker_.StepCommitted();
  PublishProgress();
}

uint64_t OperationOrder::CommitStep(int64_t next) {
  // Before the tracker starts over.
  const uint64_t hash = tracker_.hash();
  tracker_.StepCommitted();
  step_ = next;
  PublishProgress();
  // Before the step shows: a trainer that sees it committed may leave at once, with nothing begun.
  control_.within_step.store(0, std::memory_order_relaxed);
  PublishCommitted(next);
  return hash;
}

void OperationOrder::CommitWrite(int64_t next) {
  const uint64_t hash = tracker_.hash();
  // A write is no part of the recorded step, so the record stays.
  tracker_.WriteCommitted();
  step_ = next;
  PublishProgress();
  control_.writes.store(group_.decisions[next % 2].writes.load(std::memory_order_relaxed),
                        std::memory_order_relaxed);
  PublishCommitted(next);
  gate_.ReportStep(Step(next), hash);
}

void OperationOrder::PublishCommitted(int64_t next) {
  control_.trained_step.store(
      group_.decisions[next % 2].trained_step.load(std::memory_order_relaxed),
      std::memory_order_relaxed);
  // Release: a trainer that acquires the step sees the numbers above.
  control_.committed_step.store(next, std::memory_order_release);
}

// A reader that sees the step sees what was stored before it: progress_step comes last.
void OperationOrder::PublishProgress() {
  control_.progress_sequence.store(0, std::memory_order_relaxed);
  control_.progress_pass.store(tracker_.pass(), std::memory_order_release);
  control_.progress_step.store(StepUnderWay(), std::memory_order_release);
}

}  // namespace tessera
