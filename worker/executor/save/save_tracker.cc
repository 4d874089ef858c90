#include "worker/executor/save/save_tracker.h"

#include <algorithm>
#include <string>

#include "absl/strings/string_view.h"
#include "base/steady_time.h"
#include "base/utf8.h"
#include "worker/engine/agreed_error.h"

namespace tessera {
namespace {

// A rank says so often how far it is.
constexpr int kProgressReports = 16;
// A report is one packet to the worker, of 64 KiB at most.
constexpr size_t kMaxTextBytes = 4096;
constexpr int kMaxRemovedPerReport = 8;

// Fit for a proto: names of folders may be of any bytes.
std::string Told(absl::string_view text) {
  const std::string printable = PrintableUtf8(text);
  return std::string(Utf8Prefix(printable, kMaxTextBytes));
}

}  // namespace

void SaveTracker::SetRequest(const v1::RequestedSave& requested) {
  absl::MutexLock lock(&mu_);
  requested_ = requested;
  const bool stands = requested.number() == request_under_way_ && !requested.cancelled();
  // What is under way is not wanted any more, so it ends at its next look.
  if (under_way_ && request_under_way_ != 0 && !stands) cancelled_.store(true);
}

int64_t SaveTracker::wanted() const {
  absl::MutexLock lock(&mu_);
  // A number that ended is not voted for again, whatever the worker repeats.
  const bool can = !under_way_ && !requested_.cancelled() && requested_.number() > ended_request_;
  return can ? requested_.number() : 0;
}

void SaveTracker::BeginEpoch() {
  absl::MutexLock lock(&mu_);
  ordinal_ = 0;
}

void SaveTracker::Next() {
  absl::MutexLock lock(&mu_);
  ++ordinal_;
  under_way_ = true;
  request_under_way_ = 0;
  began_at_ = SteadyNow();
  // A cancellation was for the save before.
  cancelled_.store(false);
}

absl::Status SaveTracker::Fill(v1::SaveRequest* request) {
  absl::MutexLock lock(&mu_);
  request_under_way_ = request->request_number();
  if (request->request_number() == 0) {
    request->mutable_spec()->clear_root();  // Only the coordinator says it.
    return absl::OkStatus();
  }
  // The request may have been replaced between the vote and this.
  if (request->request_number() != requested_.number() || requested_.cancelled())
    return absl::CancelledError("the save is not wanted any more");
  *request->mutable_spec() = requested_.spec();
  return absl::OkStatus();
}

v1::SaveReport SaveTracker::ReportLocked(v1::SaveReport::Phase phase,
                                         const v1::SaveRequest& request, int64_t step) const {
  v1::SaveReport report;
  report.set_ordinal(ordinal_);
  report.set_number(request.request_number());
  report.set_phase(phase);
  report.set_step(step);
  *report.mutable_spec() = request.spec();
  report.mutable_spec()->set_path(Told(request.spec().path()));
  report.mutable_spec()->clear_root();
  return report;
}

void SaveTracker::Begin(const v1::SaveRequest& request, int64_t step, int64_t all_bytes) {
  absl::MutexLock lock(&mu_);
  written_bytes_ = 0;
  progress_ = ReportLocked(v1::SaveReport::BEGUN, request, step);
  progress_.set_all_bytes(all_bytes);
  // Under the lock, so that reports leave in their order.
  send_(progress_);
  progress_.set_phase(v1::SaveReport::WRITING);
}

void SaveTracker::Wrote(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  written_bytes_ += bytes;
  const int64_t every = std::max<int64_t>(progress_.all_bytes() / kProgressReports, 1);
  // A few reports for a save, not one for each write.
  if (written_bytes_ - progress_.written_bytes() < every) return;
  progress_.set_written_bytes(written_bytes_);
  send_(progress_);
}

void SaveTracker::End(const v1::SaveRequest& request, int64_t step, const absl::Status& outcome,
                      const v1::SaveReply& reply) {
  absl::MutexLock lock(&mu_);
  under_way_ = false;
  request_under_way_ = 0;
  if (request.spec().is_model()) return;
  v1::SaveReport report = ReportLocked(v1::SaveReport::ENDED, request, step);
  // Aborted tells the coordinator to try again: the ranks do not know together how it ended.
  const absl::Status end =
      outcome.ok() || IsAgreed(outcome) ? outcome : absl::AbortedError(outcome.message());
  report.set_code(end.raw_code());
  report.set_message(Told(end.message()));
  report.set_took_ms(absl::ToInt64Milliseconds(SteadyNow() - began_at_));
  if (end.ok()) report.set_size_bytes(reply.written_bytes());
  const auto& removed = reply.removed();
  // Once even if nothing was removed.
  for (int i = 0; i < removed.size() || i == 0; i += kMaxRemovedPerReport) {
    report.clear_removed();
    for (int j = i; j < std::min(i + kMaxRemovedPerReport, removed.size()); ++j)
      report.add_removed(Told(removed[j]));
    send_(report);
  }
  // Of one that ended with its epoch there is another try.
  if (!absl::IsAborted(end)) ended_request_ = std::max(ended_request_, request.request_number());
}

}  // namespace tessera
