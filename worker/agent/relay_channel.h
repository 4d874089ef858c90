// A connection of its own to the coordinator, for one stream of tensors: a slow one holds up no
// other, nor the worker's line.
#ifndef TESSERA_WORKER_AGENT_RELAY_CHANNEL_H_
#define TESSERA_WORKER_AGENT_RELAY_CHANNEL_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "net/transport_security.h"

namespace tessera {

// A coordinator that is frozen, or whose machine is gone, ends its streams within seconds.
// Errors: as OpenChannel.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenRelayChannel(const DialOptions& coordinator);

// The context of one call. It holds the call's connection until End(), which the caller calls; any
// thread may cancel, before, during and after the call. Thread-safe.
class RelayCall {
 public:
  grpc::ClientContext* context() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return context_.get();
  }
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (context_ != nullptr) context_->TryCancel();
  }
  // The call is over, and what it returned is destroyed.
  void End() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    context_ = nullptr;
  }

 private:
  absl::Mutex mu_;
  std::unique_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mu_) =
      std::make_unique<grpc::ClientContext>();
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_RELAY_CHANNEL_H_
