#include "coordinator/service/call_server.h"

#include <utility>

#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "net/end_connection.h"
#include "net/server_connections.h"

namespace tessera::coordinator {
namespace {

// How many calls gRPC may hand over before we have looked at one of them. So many that none waits
// in gRPC: what waits for our threads keeps them from reading more.
constexpr int kAwaitedCalls = 1024;

}  // namespace

void CallServer::AddTo(grpc::ServerBuilder* builder) {
  ServerConnections::Limit(builder, ServerConnections::Requests::kAny);
  builder->RegisterAsyncGenericService(&generic_);
  queue_ = builder->AddCompletionQueue();
}

absl::Status CallServer::Start() {
  while (threads_.size() < kEventThreads) {
    ASSIGN_OR_RETURN(std::thread thread, StartThread("gRPC's events", [this] {
                       void* tag = nullptr;
                       bool ok = false;
                       while (queue_->Next(&tag, &ok)) ServedCall::OnEvent(tag, ok);
                     }));
    threads_.push_back(std::move(thread));
  }
  for (int i = 0; i < kAwaitedCalls; ++i) AwaitCall();
  return absl::OkStatus();
}

void CallServer::Stop() {
  if (queue_ == nullptr) return;
  {
    const auto are_gone = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return num_calls_ == 0; };
    absl::MutexLock lock(&mu_);
    if (std::exchange(is_stopped_, true)) return;
    // A call ends with its last event, so the threads go on taking events until then.
    mu_.Await(absl::Condition(&are_gone));
  }
  // Only now: gRPC forbids to begin an operation on a queue that is shut down.
  queue_->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) ServedCall::OnEvent(tag, ok);  // There were no threads.
}

std::map<std::pair<std::string, absl::StatusCode>, int64_t> CallServer::Handled() const {
  absl::MutexLock lock(&handled_mu_);
  return handled_;
}

void CallServer::NoteHandled(const Method* method, absl::StatusCode code) {
  absl::MutexLock lock(&handled_mu_);
  ++handled_[{method == nullptr ? "" : method->name, code}];
}

void CallServer::AwaitCall() {
  {
    absl::MutexLock lock(&mu_);
    if (is_stopped_) return;
    ++num_calls_;
  }
  ServedCall::Await(this);
}

void CallServer::Request(grpc::GenericServerContext* context,
                         grpc::GenericServerAsyncReaderWriter* stream, void* tag) {
  generic_.RequestCall(context, stream, queue_.get(), queue_.get(), tag);
}

void CallServer::NoteGone() {
  absl::MutexLock lock(&mu_);
  --num_calls_;
}

const Method* CallServer::Find(const std::string& path) const {
  const auto it = methods_.find(path);
  return it == methods_.end() ? nullptr : &it->second;
}

void CallServer::NoteEnding(EndingCall* ending) {
  ServedCall* oldest = nullptr;
  {
    absl::MutexLock lock(&ending_mu_);
    ending->since = SteadyNow();
    ending->place = ending_.insert(ending_.end(), ending);
    EndingCall* const first = ending_.front();
    // Most are on their way, and only wait for their events to be looked at.
    if (ending_.size() <= kMaxEnding || SteadyNow() - first->since < kMaxEndingTime) return;
    oldest = first->call;
    oldest->Ref();  // While the call exists, its connection's descriptor is not reused.
    first->place.reset();
    ending_.pop_front();
  }
  // Without the lock, because it looks through all descriptors of this process.
  EndConnection(oldest->peer());
  oldest->Unref();
}

void CallServer::NoteEnded(EndingCall* ending) {
  absl::MutexLock lock(&ending_mu_);
  if (ending->place.has_value()) ending_.erase(*ending->place);
  ending->place.reset();
}

}  // namespace tessera::coordinator
