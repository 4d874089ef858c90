// Serves the coordinator's methods, whichever services they are of, with few threads: some that
// wait for gRPC's events, up to kShortThreads for calls that are answered at once, and one for each
// call that waits or streams and has been let in. serve.h has how methods are added.
//
// gRPC reads nothing of a call before we ask for it, and holds no thread for one: so a client that
// sends slowly, does not read its socket, or is refused, costs some kilobytes a call, of which each
// connection has few (net/server_connections.h). If the status of more than kMaxEnding calls is
// being sent, the connection of the oldest is ended once that has taken longer than kMaxEndingTime.
//
// Thread-safe once it serves.
#ifndef TESSERA_COORDINATOR_SERVICE_CALL_SERVER_H_
#define TESSERA_COORDINATOR_SERVICE_CALL_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/handler_pool.h"
#include "coordinator/service/served_call.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server_builder.h"

namespace tessera::coordinator {

// What a client or server of ours takes in one message. A model of 100,000 parameters takes some 20
// MiB.
constexpr int kMaxMessageBytes = 64 << 20;
class CallServer final : private CallHost {
 public:
  static constexpr size_t kEventThreads = 8;
  static constexpr size_t kShortThreads = 64;
  static constexpr size_t kMaxEnding = 1024;
  static constexpr absl::Duration kMaxEndingTime = absl::Seconds(2);

  // `gate` outlives this.
  explicit CallServer(const Gate* gate) : gate_(gate) {}
  ~CallServer() { Stop(); }

  void Add(const std::string& path, Method method) { methods_["/" + path] = std::move(method); }
  // All methods of the server that is built.
  void AddTo(grpc::ServerBuilder* builder);
  // Once the server is built. Errors: ResourceExhausted  no thread can be made
  absl::Status Start();
  // Once it is shut down; waits for all calls. Idempotent.
  void Stop();

  // How many calls of which method have ended how, since the start. The method "" stands for all
  // that do not exist.
  std::map<std::pair<std::string, absl::StatusCode>, int64_t> Handled() const;

 private:
  const Gate& gate() const override { return *gate_; }
  const Method* Find(const std::string& path) const override;
  HandlerPool* PoolOf(bool has_own_thread) override { return has_own_thread ? &long_ : &short_; }
  void Request(grpc::GenericServerContext* context, grpc::GenericServerAsyncReaderWriter* stream,
               void* tag) override;
  void AwaitCall() override;
  void NoteGone() override;
  void NoteHandled(const Method* method, absl::StatusCode code) override;
  void NoteEnding(EndingCall* ending) override;
  void NoteEnded(EndingCall* ending) override;

  const Gate* const gate_;
  std::map<std::string, Method> methods_;
  grpc::AsyncGenericService generic_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  absl::Mutex mu_;
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
  int num_calls_ ABSL_GUARDED_BY(mu_) = 0;
  mutable absl::Mutex handled_mu_;
  std::map<std::pair<std::string, absl::StatusCode>, int64_t> handled_ ABSL_GUARDED_BY(handled_mu_);
  absl::Mutex ending_mu_;
  std::list<EndingCall*> ending_ ABSL_GUARDED_BY(ending_mu_);  // The oldest first.
  std::vector<std::thread> threads_;                           // That wait for events.
  HandlerPool short_{kShortThreads};
  HandlerPool long_{SIZE_MAX};  // The gate has limits to them.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_CALL_SERVER_H_
