// Runs calls that wait for an object store beside each other, a thread each, at most so many at
// once: that bounds the memory of what they carry. Confined to one thread.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_PARALLEL_CALLS_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_PARALLEL_CALLS_H_

#include <functional>
#include <list>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace tessera::s3 {

class ParallelCalls {
 public:
  explicit ParallelCalls(int most) : most_(most) {}
  ~ParallelCalls() { (void)Await(); }
  ParallelCalls(const ParallelCalls&) = delete;
  ParallelCalls& operator=(const ParallelCalls&) = delete;

  // Waits until fewer than the most run, and starts it.
  // Errors: that of an earlier call, and it is not started; ResourceExhausted  no thread.
  absl::Status Add(std::function<absl::Status()> call);
  // Waits until all have ended. Errors: the first one's.
  absl::Status Await();

 private:
  struct Running {
    std::thread thread;
    bool has_ended = false;
  };
  // Waits until at most `most` run.
  void AwaitAtMost(int most);

  const int most_;
  std::list<Running> running_;  // Ends are told under mu_, the rest is the owner's.
  absl::Mutex mu_;
  int num_running_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_PARALLEL_CALLS_H_
