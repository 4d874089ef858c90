// A gRPC service by which workers, which dial the coordinator, serve the sessions of one kind
// (worker_session.h). Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_RELAY_SERVICE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_RELAY_SERVICE_H_

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/live/worker_session.h"
#include "coordinator/service/serve.h"

namespace tessera::coordinator {

// Of the elements that an event carries.
inline size_t PieceBytesOf(const v1::LiveEvent& event) { return event.piece().data().size(); }
inline size_t PieceBytesOf(const v1::PutEvent&) { return 0; }

template <typename Command, typename Event>
class RelayService {
 public:
  // `name`: of the service. `gate` and `hub` outlive this.
  RelayService(std::string name, const Gate* gate, SessionHub<Command, Event>* hub)
      : name_(std::move(name)), gate_(gate), hub_(hub) {}
  void AddTo(CallServer* calls) {  // Which this outlives.
    AddStream(calls, absl::StrCat("tessera.v1.", name_, "/Relay"), name_, CallKind::kOfWorker, this,
              &RelayService::Relay);
  }

 private:
  static constexpr size_t kMaxPieceBytes = 1 << 20;

  absl::Status Relay(CallStream<Event, Command>* stream, Event event) {
    grpc::ServerContext* const context = stream->context();
    if (!event.has_hello())
      return absl::InvalidArgumentError("the stream does not begin with a hello");
    RETURN_IF_ERROR(gate_->AdmitWorker({context, name_}, event.hello().worker_id()).status());
    const auto line = hub_->Find(event.hello().session(), event.hello().worker_id());
    if (line == nullptr || !line->Attach([context] { context->TryCancel(); }))
      return absl::NotFoundError("nobody waits for this worker's stream");
    stream->call()->GiveUpPlace();
    absl::StatusOr<std::thread> writer = StartThread("a session's stream", [&] {
      while (std::optional<Command> command = line->Pop()) {
        if (stream->Write(*command)) continue;
        context->TryCancel();
        return;
      }
    });
    while (writer.ok() && stream->Read(&event) && PieceBytesOf(event) <= kMaxPieceBytes &&
           line->Push(std::move(event)))
      continue;
    line->Detach();
    if (writer.ok()) writer->join();
    return writer.status();
  }

  const std::string name_;
  const Gate* const gate_;
  SessionHub<Command, Event>* const hub_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_RELAY_SERVICE_H_
