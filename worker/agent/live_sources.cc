#include "worker/agent/live_sources.h"

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"

namespace tessera {
namespace {

// How often a wait looks whether it was cancelled.
constexpr absl::Duration kPoll = absl::Milliseconds(50);
constexpr absl::Duration kHurryPoll = absl::Milliseconds(2);

}  // namespace

LiveSource::LiveSource(std::shared_ptr<StateSnapshot> snapshot)
    : snapshot_(std::move(snapshot)), taken_at_(SteadyNow()) {}

void LiveSource::AwaitLull(absl::Duration lull, absl::FunctionRef<bool()> hurry) {
  absl::MutexLock lock(&mu_);
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return end_.has_value(); };
  // Looked at often: training may wait from the moment that `hurry` holds.
  while (SteadyNow() - taken_at_ < lull && !hurry())
    if (AwaitWithTimeout(&mu_, absl::Condition(&ended), kHurryPoll)) return;
}

absl::Status LiveSource::AwaitEnd(absl::Duration client_timeout,
                                  absl::FunctionRef<bool()> cancelled) {
  absl::MutexLock lock(&mu_);
  taken_at_ = SteadyNow();  // It may have waited for the copy until now.
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return end_.has_value(); };
  while (!AwaitWithTimeout(&mu_, absl::Condition(&ended), kPoll)) {
    if (cancelled()) return absl::CancelledError("the reading was ended");
    if (SteadyNow() - taken_at_ > client_timeout) {
      return absl::CancelledError(absl::StrCat("the client ",
                                               entered_ ? "took nothing" : "did not come", " for ",
                                               absl::FormatDuration(client_timeout)));
    }
  }
  return *end_;
}

void LiveSource::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  // Called under the lock: Leave clears it, so the call's context still exists.
  if (cancel_ != nullptr) cancel_();
  cancel_ = nullptr;
}

bool LiveSource::Enter(std::function<void()> cancel) {
  absl::MutexLock lock(&mu_);
  // One client, once. A second one with the same session gets nothing.
  if (entered_ || closed_) return false;
  entered_ = true;
  taken_at_ = SteadyNow();
  // From here on Close ends the client's call, until it leaves.
  cancel_ = std::move(cancel);
  return true;
}

absl::StatusOr<std::optional<StateSnapshot::Piece>> LiveSource::Next(StateSnapshot::Room room) {
  // Without the lock, since it may wait for the copier.
  auto piece = snapshot_->Next(room);
  absl::MutexLock lock(&mu_);
  if (closed_) return absl::CancelledError("the reading was ended");
  taken_at_ = SteadyNow();
  return piece;
}

void LiveSource::Leave(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  // The context dies with the call.
  cancel_ = nullptr;
  end_ = status;
}

void LiveSources::Add(const std::string& session, std::shared_ptr<LiveSource> source) {
  absl::MutexLock lock(&mu_);
  sources_[session] = std::move(source);
}

void LiveSources::Remove(const std::string& session) {
  absl::MutexLock lock(&mu_);
  sources_.erase(session);
}

std::shared_ptr<LiveSource> LiveSources::Find(const std::string& session) const {
  absl::MutexLock lock(&mu_);
  const auto it = sources_.find(session);
  return it == sources_.end() ? nullptr : it->second;
}

}  // namespace tessera
