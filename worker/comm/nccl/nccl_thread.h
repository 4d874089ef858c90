// The one thread that calls NCCL for a device. The library is not safe to be called by two threads
// for one device, and nobody may be in a call while another aborts: with one thread neither
// happens, and an abort is asked for by a flag that the thread looks at while it waits.
//
//   any thread ──Run(work, deadline)──► queue ──► the thread
//
// A call that never returns takes the thread with it, and only the thread: Run comes back at its
// deadline, and from then on at once. What the work uses must then stay; so work captures shared
// ownership of it. Thread-safe.
#ifndef TESSERA_WORKER_COMM_NCCL_NCCL_THREAD_H_
#define TESSERA_WORKER_COMM_NCCL_NCCL_THREAD_H_

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tessera {

class NcclRank;

// Those that have a communicator of the device. Of the NCCL thread alone.
using NcclRanks = std::vector<std::weak_ptr<NcclRank>>;

class NcclThread {
 public:
  // Errors: ResourceExhausted  no thread can be made
  static absl::StatusOr<std::unique_ptr<NcclThread>> Create();
  // Waits for the work that runs, unless that is stuck: then the thread is abandoned.
  ~NcclThread();

  // Returns what `work` returns.
  // Errors: DeadlineExceeded  it did not come back in time; the thread is stuck
  //         Unavailable       the thread was stuck before
  absl::Status Run(absl::AnyInvocable<absl::Status()> work, absl::Duration timeout);

  bool stuck() const;
  // Only work that Run was given looks at it. The same object for good.
  const std::shared_ptr<NcclRanks>& ranks() const { return ranks_; }

 private:
  struct Job {
    absl::AnyInvocable<absl::Status()> work;
    absl::Status result;
    bool done = false;
  };
  // Owned by the thread too, which may outlive this object.
  struct State {
    mutable absl::Mutex mu;
    std::deque<std::shared_ptr<Job>> jobs ABSL_GUARDED_BY(mu);
    bool stopping ABSL_GUARDED_BY(mu) = false;
    bool stuck ABSL_GUARDED_BY(mu) = false;
  };
  NcclThread() = default;
  static void Loop(State* state);

  const std::shared_ptr<NcclRanks> ranks_ = std::make_shared<NcclRanks>();
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_NCCL_THREAD_H_
