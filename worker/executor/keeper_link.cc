#include "worker/executor/keeper_link.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/job_codec.h"
#include "worker/memory/fd_passing.h"

namespace tessera {

void KeeperLink::Send(const v1::ExecutorEvent& event) {
  (void)SendPacket(options_.socket, event.SerializeAsString());
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
  order->set_job_id(options_.job_id);
  order->set_rank(options_.rank.value());
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
  if (!mu_.AwaitWithTimeout(absl::Condition(&released), options_.release_timeout)) {
    return NotReleased(entry, step, sequence);
  }
  return released_ == position ? absl::OkStatus() : abort_reason_;
}

absl::Status KeeperLink::NotReleased(const OrderEntry& entry, Step step, int64_t sequence) const {
  const std::vector<UnitLayout>& units = options_.layout->units;
  std::string what = OpName(entry.kind);
  if (entry.unit >= 0 && entry.unit < static_cast<int64_t>(units.size())) {
    absl::StrAppend(&what, " of unit '", units[entry.unit].flat.unit_name(), "'");
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "step ", step.value(), ", position ", sequence, ": ", what,
      ": the coordinator did not answer within ", absl::FormatDuration(options_.release_timeout),
      "; it is away, or another rank has not announced the same"));
}

void KeeperLink::ReportStep(Step step, uint64_t order_hash) {
  v1::ExecutorEvent event;
  v1::StepReport* report = event.mutable_step();
  report->set_job_id(options_.job_id);
  report->set_rank(options_.rank.value());
  report->set_step(step.value());
  report->set_order_hash(order_hash);
  {
    absl::MutexLock lock(&mu_);
    report->set_epoch(epoch_.value());
  }
  Send(event);
}

void KeeperLink::ReportSaving(const std::string& path) {
  v1::ExecutorEvent event;
  event.mutable_saving()->set_path(path);
  Send(event);
}

}  // namespace tessera
