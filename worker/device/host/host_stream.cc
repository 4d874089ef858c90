#include "worker/device/host/host_stream.h"

#include <pthread.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "worker/device/host/host_event.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<HostStream>> HostStream::Create(absl::string_view name) {
  std::unique_ptr<HostStream> stream(new HostStream());
  ASSIGN_OR_RETURN(stream->thread_, StartThread(absl::StrCat("stream '", name, "'"),
                                                [stream = stream.get()] { stream->Run(); }));
  pthread_setname_np(stream->thread_.native_handle(), std::string(name.substr(0, 15)).c_str());
  return stream;
}

HostStream::~HostStream() {
  {
    absl::MutexLock lock(&mu_);
    // It runs what is left, and then ends.
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void HostStream::Enqueue(absl::AnyInvocable<void()> work) {
  absl::MutexLock lock(&mu_);
  pending_.push_back(std::move(work));
  ++enqueued_;
}

void HostStream::Record(Event* event) {
  auto* host_event = static_cast<HostEvent*>(event);
  // Taken now, so that Query is false from here on.
  const int64_t mark = host_event->NextMark();
  Enqueue([host_event, mark] { host_event->Reach(mark); });
}

void HostStream::Wait(Event* event) {
  auto* host_event = static_cast<HostEvent*>(event);
  // As it is now: a later Record is not waited for.
  const int64_t mark = host_event->LastMark();
  Enqueue([host_event, mark] { host_event->AwaitMark(mark); });
}

void HostStream::Synchronize() {
  absl::MutexLock lock(&mu_);
  // What is enqueued from now on is not waited for.
  const int64_t until = enqueued_;
  const auto done = [this, until]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return done_ >= until; };
  mu_.Await(absl::Condition(&done));
}

void HostStream::Run() {
  std::vector<absl::AnyInvocable<void()>> running;
  const auto woken = [this]()
                         ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !pending_.empty() || stopping_; };
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&woken));
      // Only once nothing is left: the destructor promises that.
      if (pending_.empty()) return;
      // All of it at once, so that the lock is taken once for a batch.
      running.swap(pending_);
    }
    const int64_t batch = static_cast<int64_t>(running.size());
    for (absl::AnyInvocable<void()>& work : running) {
      // No status to return here: only faults that delay or end the process fit.
      (void)FaultPoint("stream.before-work");
      work();
      (void)FaultPoint("stream.after-work");
      work = nullptr;  // What it captured is let go before later work runs.
    }
    running.clear();
    absl::MutexLock lock(&mu_);
    // Counted last, so that Synchronize returns after the captures are gone.
    done_ += batch;
  }
}

}  // namespace tessera
