#include "worker/comm/nccl/nccl_thread.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<NcclThread>> NcclThread::Create() {
  auto thread = absl::WrapUnique(new NcclThread());
  ASSIGN_OR_RETURN(thread->thread_,
                   StartThread("NCCL", [state = thread->state_] { Loop(state.get()); }));
  return thread;
}

NcclThread::~NcclThread() {
  if (!thread_.joinable()) return;
  bool stuck = false;
  {
    absl::MutexLock lock(&state_->mu);
    state_->stopping = true;
    stuck = state_->stuck;
  }
  // A stuck call never returns. Its thread shares the state, so it may outlive this object.
  if (stuck) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

absl::Status NcclThread::Run(absl::AnyInvocable<absl::Status()> work, absl::Duration timeout) {
  // Shared: the thread may still run it when this call has given up.
  auto job = std::make_shared<Job>();
  job->work = std::move(work);
  absl::MutexLock lock(&state_->mu);
  if (state_->stuck) {
    return absl::UnavailableError("an NCCL call never returned: the process must end");
  }
  state_->jobs.push_back(job);
  if (AwaitWithTimeout(&state_->mu, absl::Condition(&job->done), timeout)) return job->result;
  // For good: what the call still uses is unknown, and the library's state with it.
  state_->stuck = true;
  return absl::DeadlineExceededError(
      absl::StrCat("a call of NCCL did not come back within ", absl::FormatDuration(timeout)));
}

bool NcclThread::stuck() const {
  absl::MutexLock lock(&state_->mu);
  return state_->stuck;
}

void NcclThread::Loop(State* state) {
  const auto woken = [state]() ABSL_SHARED_LOCKS_REQUIRED(state->mu) {
    return !state->jobs.empty() || state->stopping;
  };
  while (true) {
    std::shared_ptr<Job> job;
    {
      absl::MutexLock lock(&state->mu);
      state->mu.Await(absl::Condition(&woken));
      // Work queued after a call that was stuck and returned after all is not run: its caller
      // left.
      if (state->jobs.empty() || state->stuck) return;
      job = std::move(state->jobs.front());
      state->jobs.pop_front();
    }
    // Without the lock: callers wait on it with a deadline of their own.
    absl::Status result = job->work();
    // What the work holds is released before its caller goes on, and outside the lock.
    job->work = nullptr;
    absl::MutexLock lock(&state->mu);
    job->result = std::move(result);
    job->done = true;
  }
}

}  // namespace tessera
