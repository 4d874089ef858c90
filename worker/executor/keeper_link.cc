#include "worker/executor/keeper_link.h"

#include "base/status_macros.h"
#include "worker/memory/fd_passing.h"
#include "worker/memory/job_codec.h"

namespace tessera {

void KeeperLink::Send(const v1::ExecutorEvent& event) {
  (void)SendPacket(socket_, event.SerializeAsString());
}

void KeeperLink::BeginEpoch(Epoch epoch) {
  absl::MutexLock lock(&mu_);
  epoch_ = epoch;
  abort_reason_ = absl::OkStatus();
  released_ = {-1, -1};
}

void KeeperLink::AbortEpoch(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  if (abort_reason_.ok()) abort_reason_ = reason;
}

bool KeeperLink::aborted() const {
  absl::MutexLock lock(&mu_);
  return !abort_reason_.ok();
}

void KeeperLink::OnRelease(const v1::OrderRelease& release) {
  absl::MutexLock lock(&mu_);
  if (release.epoch() != epoch_.value()) return;
  released_ = {release.step(), release.sequence()};
}

absl::Status KeeperLink::AwaitRelease(const OrderEntry& entry, Step step, int64_t sequence) {
  v1::ExecutorEvent event;
  v1::OrderAnnouncement* order = event.mutable_order();
  order->set_job_id(job_id_);
  order->set_rank(rank_.value());
  order->set_step(step.value());
  order->set_sequence(sequence);
  order->mutable_entry()->set_operation(OpName(entry.kind));
  order->mutable_entry()->set_unit(entry.unit);
  order->mutable_entry()->set_dtype(EncodeDType(entry.dtype));
  order->mutable_entry()->set_count(entry.count_elements);
  const std::pair<int64_t, int64_t> position = {step.value(), sequence};
  {
    absl::MutexLock lock(&mu_);
    order->set_epoch(epoch_.value());
  }
  Send(event);
  absl::MutexLock lock(&mu_);
  const auto released = [this, position]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return released_ == position || !abort_reason_.ok();
  };
  // No deadline here: a peer that never arrives is the coordinator's to see, which ends the epoch.
  mu_.Await(absl::Condition(&released));
  return released_ == position ? absl::OkStatus() : abort_reason_;
}

void KeeperLink::ReportStep(Step step, uint64_t order_hash) {
  v1::ExecutorEvent event;
  v1::StepReport* report = event.mutable_step();
  report->set_job_id(job_id_);
  report->set_rank(rank_.value());
  report->set_step(step.value());
  report->set_order_hash(order_hash);
  {
    absl::MutexLock lock(&mu_);
    report->set_epoch(epoch_.value());
  }
  Send(event);
}

}  // namespace tessera
