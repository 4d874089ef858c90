#include "worker/executor/keeper_link.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "job/field_limits.h"
#include "job/job_codec.h"
#include "shm/fd_passing.h"

namespace tessera {

void KeeperLink::Send(const v1::ExecutorEvent& event) {
  // If the worker is gone, the reader of commands sees it.
  // Packets are sent whole, so threads that send at once need no lock.
  (void)SendPacket(options_.socket, event.SerializeAsString());
}

void KeeperLink::BeginEpoch(Epoch epoch) {
  absl::MutexLock lock(&mu_);
  epoch_ = epoch;
  abort_reason_ = absl::OkStatus();
  interruption_ = absl::OkStatus();
  awaited_ = kNowhere;
  kept_back_.Clear();  // Of an epoch that is over.
}

void KeeperLink::AbortEpoch(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  // The first reason is the cause.
  if (abort_reason_.ok()) abort_reason_ = reason;
}

void KeeperLink::Interrupt(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  // Not an abort, of which the worker knows: the failure that caused it is still to be reported.
  if (interruption_.ok()) interruption_ = reason;
}

bool KeeperLink::aborted() const {
  absl::MutexLock lock(&mu_);
  return !abort_reason_.ok();
}

void KeeperLink::OnRelease(const v1::OrderRelease& release) {
  absl::MutexLock lock(&mu_);
  // One that is late, of an older epoch or a repeat of an earlier place, changes nothing: it neither
  // lets another operation pass nor takes this one's release back before its thread has seen it.
  const OrderPlace place = {release.step(), release.pass(), release.sequence()};
  if (release.epoch() == epoch_.value() && place == awaited_) awaited_ = kNowhere;
}

absl::Status KeeperLink::AwaitRelease(const OrderEntry& entry, const OrderPlace& place) {
  v1::ExecutorEvent event;
  v1::OrderAnnouncement* order = event.mutable_order();
  order->set_job_id(options_.job_id);
  order->set_rank(options_.rank.value());
  order->set_step(place.step);
  order->set_pass(place.pass);
  order->set_sequence(place.sequence);
  order->mutable_entry()->set_operation(OpName(entry.kind));
  order->mutable_entry()->set_unit(entry.unit);
  order->mutable_entry()->set_dtype(EncodeDType(entry.dtype));
  order->mutable_entry()->set_count(entry.count_elements);
  // Held from before the announcement: its release cannot be missed.
  absl::MutexLock lock(&mu_);
  order->set_epoch(epoch_.value());
  awaited_ = place;
  // First, so that the coordinator hears of finished steps before it hears of a later one.
  SendReportsLocked();
  Send(event);
  const auto released = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    // Woken by a release, by the worker's abort, or by an error of this executor's stream.
    return awaited_ == kNowhere || !abort_reason_.ok() || !interruption_.ok();
  };
  if (!AwaitWithTimeout(&mu_, absl::Condition(&released), options_.release_timeout)) {
    return NotReleased(entry, place);
  }
  // A release wins over an abort that came with it: the next operation sees the abort.
  if (awaited_ == kNowhere) return absl::OkStatus();
  return abort_reason_.ok() ? interruption_ : abort_reason_;
}

absl::Status KeeperLink::NotReleased(const OrderEntry& entry, const OrderPlace& place) const {
  const std::vector<UnitLayout>& units = options_.layout->units;
  std::string what = OpName(entry.kind);
  if (entry.unit >= 0 && entry.unit < static_cast<int64_t>(units.size())) {
    absl::StrAppend(&what, " of unit '", units[entry.unit].flat.unit_name(), "'");
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "step ", place.step, ", position ", place.sequence, ": ", what,
      ": the coordinator did not answer within ", absl::FormatDuration(options_.release_timeout),
      "; it is unreachable, or another rank has not announced the same"));
}

void KeeperLink::ReportStep(Step step, uint64_t order_hash) {
  absl::MutexLock lock(&mu_);
  v1::StepReport& report = kept_back_;
  // Only steps in a row travel together. Each brings its hash.
  if (report.epoch() != 0 && report.step() + 1 == step.value()) {
    // The coordinator compares each step's hash, however many travel together.
    report.add_earlier_order_hashes(report.order_hash());
  } else {
    SendReportsLocked();
    report.set_job_id(options_.job_id);
    report.set_rank(options_.rank.value());
    // Reports of two epochs never travel together: BeginEpoch has cleared what was kept back.
    report.set_epoch(epoch_.value());
  }
  report.set_step(step.value());
  report.set_order_hash(order_hash);
  // Sent at once if the last one is long ago: only fast steps are kept back.
  if (report.earlier_order_hashes_size() == kMaxEarlierReports ||
      SteadyNow() - reported_at_ >= options_.report_interval) {
    SendReportsLocked();
  }
}

bool KeeperLink::keeps_reports_back() const {
  absl::MutexLock lock(&mu_);
  return kept_back_.epoch() != 0;
}

void KeeperLink::SendReports() {
  absl::MutexLock lock(&mu_);
  SendReportsLocked();
}

void KeeperLink::SendReportsLocked() {
  if (kept_back_.epoch() == 0) return;
  v1::ExecutorEvent event;
  event.mutable_step()->Swap(&kept_back_);
  kept_back_.Clear();
  Send(event);
  reported_at_ = SteadyNow();
}

void KeeperLink::ReportSaving(const std::string& path) {
  v1::ExecutorEvent event;
  event.mutable_saving()->set_path(path);
  Send(event);
}

}  // namespace tessera
