#include "coordinator/service/call_watch.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/steady_time.h"
#include "grpc/grpc.h"

namespace tessera::coordinator {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(10);
// A span that takes no longer is small, and is never ended to free memory.
constexpr absl::Duration kGrace = absl::Milliseconds(50);

}  // namespace

int64_t ResidentBytes() {
  int64_t all_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> all_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

CallWatch::CallWatch(std::function<bool()> has_too_much_memory, std::function<void()> on_look)
    : has_too_much_memory_(std::move(has_too_much_memory)), on_look_(std::move(on_look)) {
  absl::StatusOr<std::thread> thread = StartThread("the watch over calls", [this] { Run(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    // Calls then have no deadlines, but they are served.
    TESSERA_LOG(ERROR, "{}", thread.status().ToString());
  }
}

CallWatch::~CallWatch() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

CallWatch::Span::Span(CallWatch* watch, grpc::ServerContextBase* context, absl::Time deadline,
                      absl::Status late, bool may_be_large)
    : watch_(watch),
      context_(context),
      deadline_(deadline),
      began_at_(SteadyNow()),
      late_(std::move(late)),
      may_be_large_(may_be_large) {
  absl::MutexLock lock(&watch_->mu_);
  place_ = watch_->spans_.insert(watch_->spans_.end(), this);
}

CallWatch::Span::~Span() {
  absl::MutexLock lock(&watch_->mu_);
  watch_->spans_.erase(place_);
}

absl::Status CallWatch::Span::Ended() const {
  absl::MutexLock lock(&watch_->mu_);
  return ended_;
}

void CallWatch::Run() {
  const auto has_work = [this]()
                            ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopped_ || !spans_.empty(); };
  while (true) {
    bool is_any_slow = false;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      if (AwaitWithTimeout(&mu_, absl::Condition(&stopped_), kLookInterval)) return;
      EndLateOnes();
      is_any_slow = OldestSlow() != nullptr;
    }
    // Without the lock: a call that gets its turn here ends its span, which takes the lock.
    on_look_();
    // Without the lock, for which calls wait: it reads a file of /proc.
    if (!is_any_slow || !has_too_much_memory_()) continue;
    absl::MutexLock lock(&mu_);
    // Only one, because its end may free enough.
    if (Span* span = OldestSlow(); span != nullptr) {
      End(span,
          absl::UnavailableError(
              "the coordinator has no memory for it (--max-memory-bytes), and it takes longer "
              "than the requests and replies of others: call again later"));
    }
  }
}

void CallWatch::EndLateOnes() {
  const absl::Time now = SteadyNow();
  for (Span* span : spans_) {
    span->watch_->mu_.AssertHeld();
    // A span that was ended stays in the list until its call has noticed, and keeps its status.
    if (span->ended_.ok() && span->deadline_ <= now) End(span, span->late_);
  }
}

CallWatch::Span* CallWatch::OldestSlow() const {
  for (Span* span : spans_) {
    span->watch_->mu_.AssertHeld();
    if (span->ended_.ok() && span->may_be_large_)
      // All others began later, so if this one is not slow, none is.
      return SteadyNow() - span->began_at_ < kGrace ? nullptr : span;
  }
  return nullptr;
}

// This is what TryCancel does, with a status that the client sees.
void CallWatch::End(Span* span, const absl::Status& status) {
  span->watch_->mu_.AssertHeld();
  span->ended_ = status;
  grpc_call_cancel_with_status(span->context_->c_call(),
                               static_cast<grpc_status_code>(status.raw_code()),
                               std::string(status.message()).c_str(), nullptr);
}

}  // namespace tessera::coordinator
