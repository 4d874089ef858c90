#include "worker/keeper/executor_event.h"

#include "base/status_macros.h"
#include "job/field_limits.h"
#include "job/worker_events.h"

namespace tessera {
namespace {

constexpr int kMaxStatusCode = static_cast<int>(absl::StatusCode::kUnauthenticated);

// Executors in trainers' processes are as untrusted as their trainers.
absl::Status Check(const v1::ExecutorEvent& event) {
  switch (event.event_case()) {
    case v1::ExecutorEvent::kOrder:
      return CheckOrder(event.order());
    case v1::ExecutorEvent::kStep:
      return CheckStepReport(event.step());
    case v1::ExecutorEvent::kSave:
      return CheckSaveReport(event.save());
    case v1::ExecutorEvent::kQuiesced:
      return CheckRankAddress(event.quiesced().address());
    case v1::ExecutorEvent::kFailure:
      // It becomes an absl::StatusCode, and what each rank's trainer gets.
      return CheckRange("failure: code", event.failure().code(), 0, kMaxStatusCode);
    case v1::ExecutorEvent::EVENT_NOT_SET:
      return absl::InvalidArgumentError("its message is not an event");
    default:
      return absl::OkStatus();
  }
}

}  // namespace

absl::StatusOr<v1::ExecutorEvent> ParseExecutorEvent(absl::string_view packet) {
  v1::ExecutorEvent event;
  if (!event.ParseFromArray(packet.data(), static_cast<int>(packet.size())))
    return absl::InvalidArgumentError("its message is not an event");
  RETURN_IF_ERROR(Check(event));
  return event;
}

}  // namespace tessera
