// Which cluster a worker belongs to, so that it obeys no other one's coordinator. Thread-safe.
#ifndef TESSERA_WORKER_AGENT_CLUSTER_NAME_H_
#define TESSERA_WORKER_AGENT_CLUSTER_NAME_H_

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace tessera {

class ClusterName {
 public:
  // Of an earlier daemon, whose jobs this one has; empty: none.
  explicit ClusterName(std::string name = "") : name_(std::move(name)) {}

  // Empty: none yet.
  std::string name() const {
    absl::MutexLock lock(&mu_);
    return name_;
  }

  // A coordinator of `name` has answered. One that holds nothing joins whichever cluster it is.
  // Errors: FailedPrecondition  it holds jobs of another cluster
  absl::Status Join(const std::string& name, bool holds_jobs);

 private:
  mutable absl::Mutex mu_;
  std::string name_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_CLUSTER_NAME_H_
