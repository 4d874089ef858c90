#include "coordinator/service/live/map_hub.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "coordinator/service/live/live_hub.h"
#include "coordinator/service/live/worker_failure.h"
#include "job/map_session.h"

namespace tessera::coordinator {
namespace {

// How often a wait checks for its cancellation.
constexpr absl::Duration kPoll = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::string> MapLine::AwaitOffered(absl::Time deadline,
                                                  absl::FunctionRef<bool()> cancelled) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || ended_ || answer_.has_value();
  };
  while (!ready()) {
    if (cancelled()) return absl::CancelledError("the client is gone");
    const absl::Time now = SteadyNow();
    if (now >= deadline)
      return absl::UnavailableError(absl::StrCat("worker '", worker_, "' does not answer"));
    AwaitWithDeadline(&mu_, absl::Condition(&ready), std::min(deadline, now + kPoll));
  }
  if (closed_) return absl::CancelledError("the session was ended");
  if (!answer_.has_value())
    return absl::UnavailableError(absl::StrCat("worker '", worker_, "' ended its stream"));
  if (answer_->has_failure()) return WorkerFailure(worker_, answer_->failure());
  if (answer_->has_offered()) return answer_->offered().descriptor_socket();
  return absl::UnavailableError(absl::StrCat("worker '", worker_, "' answered out of order"));
}

bool MapLine::has_ended() {
  absl::MutexLock lock(&mu_);
  return ended_;
}

void MapLine::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  if (on_close_ != nullptr) on_close_();
  on_close_ = nullptr;
}

bool MapLine::Attach(std::function<void()> on_close) {
  absl::MutexLock lock(&mu_);
  if (closed_ || attached_) return false;
  attached_ = true;
  on_close_ = std::move(on_close);
  return true;
}

void MapLine::Answer(v1::LiveMapEvent event) {
  absl::MutexLock lock(&mu_);
  if (!answer_.has_value()) answer_ = std::move(event);
}

void MapLine::Detach() {
  absl::MutexLock lock(&mu_);
  ended_ = true;
  on_close_ = nullptr;
}

absl::Status MapHub::Enter(const JobId& job, absl::Time deadline,
                           absl::FunctionRef<bool()> cancelled) {
  absl::MutexLock lock(&mu_);
  ++num_waiting_;
  const absl::Cleanup no_longer = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { --num_waiting_; };
  const auto has_room = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    const auto it = maps_.find(job);
    return it == maps_.end() || it->second < kMaxMapsOfAJob;
  };
  while (!AwaitWithDeadline(&mu_, absl::Condition(&has_room),
                            std::min(deadline, SteadyNow() + kPoll))) {
    if (cancelled()) return absl::CancelledError("the client is gone");
    if (SteadyNow() < deadline) continue;
    return absl::ResourceExhaustedError(absl::StrCat("job '", job.value(), "': ", kMaxMapsOfAJob,
                                                     " clients map its state already"));
  }
  ++maps_[job];
  return absl::OkStatus();
}

void MapHub::Leave(const JobId& job) {
  absl::MutexLock lock(&mu_);
  const auto it = maps_.find(job);
  if (--it->second == 0) maps_.erase(it);
}

int MapHub::num_waiting() {
  absl::MutexLock lock(&mu_);
  return num_waiting_;
}

std::string MapHub::NewSession() { return absl::StrCat(kMapSessionPrefix, LiveHub::NewSession()); }

void MapHub::Expect(const std::string& session, std::shared_ptr<MapLine> line) {
  absl::MutexLock lock(&mu_);
  const std::pair<std::string, std::string> key(session, line->worker());
  lines_[key] = std::move(line);
}

void MapHub::Forget(const std::string& session, const std::string& worker) {
  absl::MutexLock lock(&mu_);
  lines_.erase({session, worker});
}

std::shared_ptr<MapLine> MapHub::Find(const std::string& session, const std::string& worker) {
  absl::MutexLock lock(&mu_);
  const auto it = lines_.find({session, worker});
  return it == lines_.end() ? nullptr : it->second;
}

}  // namespace tessera::coordinator
