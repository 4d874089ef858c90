// The coordinator's calls, events and commands between the wire and the core. Decoding checks the
// form and bounds of every field, InvalidArgument naming the field; what it means in the job's
// present state is the core's matter. Pure; thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_CODEC_H_
#define TESSERA_COORDINATOR_SERVICE_CODEC_H_

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/events.h"
#include "proto/coordinator.pb.h"

namespace tessera::coordinator {

using HeartbeatEvent = std::vector<JobProgress>;
using StreamEvent = std::variant<HeartbeatEvent, OrderAnnouncement, StepReport, RankFailure,
                                 EpochPrepared, SaveReport, HeldJob>;

struct RegisterWorkerEvent {
  WorkerId worker;
  Member member;
  std::string cluster;       // Whose jobs it holds; empty: it holds none.
  uint64_t heard_start = 0;  // As RegisterWorkerRequest.
  int64_t heard_changes = 0;
};

absl::StatusOr<CreateJobEvent> Decode(v1::CreateJobRequest request);
absl::StatusOr<DeleteJobEvent> Decode(const v1::DeleteJobRequest& request);
absl::StatusOr<RegisterWorkerEvent> Decode(const v1::RegisterWorkerRequest& request);
// Of a stream's first message.
absl::StatusOr<Sender> DecodeSender(const v1::WorkerEvent& event);
// Requires that the event is set.
absl::StatusOr<StreamEvent> Decode(const v1::WorkerEvent& event);

v1::Job Encode(const JobView& view);
// Its model has units without anything in them: it may take megabytes.
v1::Job EncodeSummary(const JobView& view);
v1::CoordinatorCommand Encode(const Command& command);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_CODEC_H_
