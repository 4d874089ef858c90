#include "coordinator/service/codec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/core/job_spec.h"
#include "coordinator/core/order_validator.h"
#include "coordinator/service/field_checks.h"
#include "coordinator/service/save_codec.h"
#include "job/field_limits.h"
#include "job/job_codec.h"
#include "job/save_spec_codec.h"
#include "job/worker_events.h"

namespace tessera::coordinator {
namespace {

constexpr int kMaxStatusCode = static_cast<int>(absl::StatusCode::kUnauthenticated);

// Of a number that is a sum of times, or a norm.
double FiniteOrZero(double value) { return std::isfinite(value) && value >= 0 ? value : 0; }

RankStatus DecodeRankStatus(const v1::RankStatus& status) {
  RankStatus decoded;
  decoded.step = Step(status.step());
  decoded.sequence = status.sequence();
  decoded.pass = status.pass();
  // Only shown, so it is cut instead of refused.
  decoded.doing = std::string(Truncated(status.doing(), kMaxNameBytes));
  decoded.attached = status.attached();
  decoded.parameter_bytes = status.parameter_bytes();
  decoded.gradient_bytes = status.gradient_bytes();
  decoded.optimizer_bytes = status.optimizer_bytes();
  decoded.executor_pid = status.executor_pid();
  decoded.finished = Incarnation(status.finished_attachment());
  decoded.compute_seconds = FiniteOrZero(status.compute_seconds());
  decoded.gradient_norm = FiniteOrZero(status.gradient_norm());
  for (const auto& [name, value] : status.reported()) {
    if (decoded.reported.size() < kMaxReportedValues && CheckReportedName(name).ok())
      decoded.reported[name] = value;
  }
  return decoded;
}

v1::RankStatus EncodeRankStatus(const RankStatus& status) {
  v1::RankStatus encoded;
  encoded.set_step(status.step.value());
  encoded.set_sequence(status.sequence);
  encoded.set_pass(status.pass);
  encoded.set_doing(status.doing);
  encoded.set_attached(status.attached);
  encoded.set_parameter_bytes(status.parameter_bytes);
  encoded.set_gradient_bytes(status.gradient_bytes);
  encoded.set_optimizer_bytes(status.optimizer_bytes);
  encoded.set_executor_pid(status.executor_pid);
  encoded.set_finished_attachment(status.finished.value());
  encoded.set_compute_seconds(status.compute_seconds);
  encoded.set_gradient_norm(status.gradient_norm);
  encoded.mutable_reported()->insert(status.reported.begin(), status.reported.end());
  return encoded;
}

absl::StatusOr<StreamEvent> DecodeHeartbeat(const v1::Heartbeat& heartbeat) {
  HeartbeatEvent decoded;
  for (const v1::JobProgress& job : heartbeat.jobs()) {
    RETURN_IF_ERROR(CheckJobId(job.job_id()));
    JobProgress& progress = decoded.emplace_back();
    progress.job = JobId(job.job_id());
    progress.generation = Generation(job.generation());
    progress.epoch = Epoch(job.epoch());
    for (const auto& [rank, status] : job.ranks()) {
      RETURN_IF_ERROR(CheckRange("rank status: step", status.step(), 0, kMaxCounter));
      RETURN_IF_ERROR(CheckRange("rank status: sequence", status.sequence(), 0, kMaxCounter));
      RETURN_IF_ERROR(CheckRange("rank status: pass", status.pass(), 0, kMaxCounter));
      progress.ranks[rank] = DecodeRankStatus(status);
    }
  }
  return decoded;
}

absl::StatusOr<StreamEvent> DecodeOrder(const v1::OrderAnnouncement& order) {
  RETURN_IF_ERROR(CheckJobId(order.job_id()));
  RETURN_IF_ERROR(CheckOrder(order));
  OrderAnnouncement decoded;
  decoded.job = JobId(order.job_id());
  decoded.generation = Generation(order.generation());
  decoded.epoch = Epoch(order.epoch());
  decoded.rank = Rank(order.rank());
  decoded.position = {Step(order.step()), order.sequence(), order.pass()};
  decoded.entry.operation = order.entry().operation();
  decoded.entry.unit = UnitId(order.entry().unit());
  decoded.entry.count_elements = order.entry().count();
  ASSIGN_OR_RETURN(decoded.entry.dtype, DecodeDType(order.entry().dtype()));
  return decoded;
}

absl::StatusOr<StreamEvent> DecodeStep(const v1::StepReport& step) {
  RETURN_IF_ERROR(CheckJobId(step.job_id()));
  RETURN_IF_ERROR(CheckStepReport(step));
  return StepReport{JobId(step.job_id()),
                    Generation(step.generation()),
                    Epoch(step.epoch()),
                    Rank(step.rank()),
                    Step(step.step()),
                    step.order_hash(),
                    {step.earlier_order_hashes().begin(), step.earlier_order_hashes().end()}};
}

absl::StatusOr<StreamEvent> DecodePrepared(const v1::EpochPrepared& prepared) {
  RETURN_IF_ERROR(CheckJobId(prepared.job_id()));
  RETURN_IF_ERROR(CheckRange("decided_step", prepared.decided_step(), 0, kMaxCounter));
  RETURN_IF_ERROR(
      CheckRange("number of rank_addresses", prepared.rank_addresses_size(), 0, kMaxLocalRanks));
  // Kept for the epoch and sent to all workers of the job, so it is bounded.
  RETURN_IF_ERROR(CheckRange("size of decision", prepared.decision().size(), 0, kMaxDecisionBytes));
  EpochPrepared decoded{JobId(prepared.job_id()),
                        Generation(prepared.generation()),
                        Epoch(prepared.epoch()),
                        Step(prepared.decided_step()),
                        {},
                        prepared.decision(),
                        prepared.holds_nothing()};
  // Peers of other workers dial these.
  for (const auto& [rank, address] : prepared.rank_addresses()) {
    RETURN_IF_ERROR(CheckRankAddress(address));
    decoded.rank_addresses[rank] = address;
  }
  return decoded;
}

absl::StatusOr<StreamEvent> DecodeHeld(const v1::HeldJob& held) {
  const v1::Job& job = held.job();
  RETURN_IF_ERROR(CheckJobId(job.job_id()));
  RETURN_IF_ERROR(CheckRange("generation", job.generation(), 1, kMaxCounter));
  // The core counts on from these numbers, so that the largest ones would overflow.
  RETURN_IF_ERROR(CheckRange("epoch", job.epoch(), 1, kMaxCounter));
  RETURN_IF_ERROR(CheckRange("decided_step", held.decided_step(), 0, kMaxCounter));
  ASSIGN_OR_RETURN(ModelSpec model, DecodeModel(job.model()));
  ASSIGN_OR_RETURN(JobConfig config, DecodeJobConfig(job.config()));
  HeldJob decoded;
  decoded.job = JobId(job.job_id());
  decoded.generation = Generation(job.generation());
  // Checks the job as if it were new, and computes the layout instead of believing a digest.
  ASSIGN_OR_RETURN(decoded.spec,
                   MakeJobSpec(std::move(model), std::move(config), /*submitting_rank=*/-1));
  decoded.epoch = Epoch(job.epoch());
  decoded.decided_step = Step(held.decided_step());
  decoded.has_begun = held.has_begun();
  if (!job.owner().empty()) RETURN_IF_ERROR(CheckName("owner", job.owner()));
  decoded.owner = job.owner();
  RETURN_IF_ERROR(CheckRange("size of attach_key", job.attach_key().size(), 0, kAttachKeyBytes));
  decoded.attach_key = job.attach_key();
  for (const v1::RankPlacement& placement : job.placements()) {
    RETURN_IF_ERROR(CheckWorkerId("placement: worker_id", placement.worker_id()));
    // The position in `places` is the rank, so the ranks must come in order.
    RETURN_IF_ERROR(CheckRange("placement: rank", placement.rank(), decoded.places.size(),
                               decoded.places.size()));
    RETURN_IF_ERROR(CheckRange("placement: since_epoch", placement.since_epoch(), 0, job.epoch()));
    decoded.places.push_back(
        {WorkerId(placement.worker_id()), placement.device(), Epoch(placement.since_epoch())});
  }
  return decoded;
}

void EncodeInto(const DescribeJob& describe, v1::CoordinatorCommand* command) {
  command->mutable_describe()->set_job_id(describe.job.value());
  command->mutable_describe()->set_generation(describe.generation.value());
}

void EncodeInto(const PrepareEpoch& prepare, v1::CoordinatorCommand* command) {
  *command->mutable_prepare()->mutable_job() = Encode(prepare.job);
  // Encode leaves the key out, because its jobs are also for readers.
  command->mutable_prepare()->mutable_job()->set_attach_key(prepare.job.attach_key);
  command->mutable_prepare()->set_reason(prepare.reason);
  command->mutable_prepare()->set_discards_state(prepare.discards_state);
  command->mutable_prepare()->set_deleted_generation(prepare.deleted_generation.value());
  command->mutable_prepare()->set_code(prepare.code);
}

void EncodeInto(const StartEpoch& start, v1::CoordinatorCommand* command) {
  command->mutable_start()->set_job_id(start.job.value());
  command->mutable_start()->set_generation(start.generation.value());
  command->mutable_start()->set_epoch(start.epoch.value());
  command->mutable_start()->set_resume_step(start.resume_step.value());
  command->mutable_start()->mutable_rank_addresses()->insert(start.rank_addresses.begin(),
                                                             start.rank_addresses.end());
  command->mutable_start()->set_decision(start.decision);
  command->mutable_start()->set_frozen(start.frozen);
  command->mutable_start()->mutable_rebuilt_ranks()->Add(start.rebuilt_ranks.begin(),
                                                         start.rebuilt_ranks.end());
}

void EncodeInto(const OrderRelease& release, v1::CoordinatorCommand* command) {
  v1::OrderRelease* encoded = command->mutable_release();
  encoded->set_job_id(release.job.value());
  encoded->set_generation(release.generation.value());
  encoded->set_epoch(release.epoch.value());
  encoded->set_rank(release.rank.value());
  encoded->set_step(release.position.step.value());
  encoded->set_sequence(release.position.sequence);
  encoded->set_pass(release.position.pass);
}

void EncodeInto(const OrderMismatch& mismatch, v1::CoordinatorCommand* command) {
  v1::OrderMismatch* encoded = command->mutable_mismatch();
  encoded->set_job_id(mismatch.job.value());
  encoded->set_generation(mismatch.generation.value());
  encoded->set_epoch(mismatch.epoch.value());
  encoded->set_step(mismatch.position.step.value());
  encoded->set_sequence(mismatch.position.sequence);
  encoded->set_pass(mismatch.position.pass);
  encoded->set_message(mismatch.message);
  encoded->set_restart(mismatch.restart);
}

void EncodeInto(const ServeState& serve, v1::CoordinatorCommand* command) {
  command->mutable_serve_state()->set_job_id(serve.job.value());
  command->mutable_serve_state()->set_generation(serve.generation.value());
  command->mutable_serve_state()->set_session(serve.session);
}
void EncodeInto(const StagePut& stage, v1::CoordinatorCommand* command) {
  command->mutable_stage_put()->set_job_id(stage.job.value());
  command->mutable_stage_put()->set_generation(stage.generation.value());
  command->mutable_stage_put()->set_session(stage.session);
}

void EncodeInto(const WantSave& want, v1::CoordinatorCommand* command) {
  v1::RequestedSave* save = command->mutable_requested_save();
  save->set_job_id(want.job.value());
  save->set_generation(want.generation.value());
  save->set_number(want.number);
  if (want.number != 0) *save->mutable_spec() = EncodeSaveSpec(want.spec);
  save->set_cancelled(want.cancelled);
}

void EncodeInto(const DropJob& drop, v1::CoordinatorCommand* command) {
  command->mutable_drop()->set_job_id(drop.job.value());
  command->mutable_drop()->set_generation(drop.generation.value());
}

v1::JobState EncodeState(JobState state) {
  switch (state) {
    case JobState::kWaiting:
      return v1::JOB_STATE_WAITING;
    case JobState::kStarting:
      return v1::JOB_STATE_STARTING;
    case JobState::kRunning:
      return v1::JOB_STATE_RUNNING;
    case JobState::kDeleted:
      return v1::JOB_STATE_DELETED;
    case JobState::kLost:
      return v1::JOB_STATE_LOST;
    case JobState::kHandedOver:
      return v1::JOB_STATE_HANDED_OVER;
    case JobState::kOrphaned:
      return v1::JOB_STATE_ORPHANED;
  }
  return v1::JOB_STATE_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<CreateJobEvent> Decode(v1::CreateJobRequest request) {
  RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  RETURN_IF_ERROR(CheckJobId(request.job_id()));
  RETURN_IF_ERROR(CheckRange("submitting_rank", request.submitting_rank(), -1, kMaxWorldSize));
  ASSIGN_OR_RETURN(ModelSpec model, DecodeModel(request.model()));
  request.clear_model();  // A large one takes many MiB, and so does its layout.
  ASSIGN_OR_RETURN(JobConfig config, DecodeJobConfig(request.config()));
  ASSIGN_OR_RETURN(JobSpecPtr spec,
                   MakeJobSpec(std::move(model), std::move(config), request.submitting_rank()));
  return CreateJobEvent{request.request_id(), JobId(request.job_id()), std::move(spec)};
}

absl::StatusOr<DeleteJobEvent> Decode(const v1::DeleteJobRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  RETURN_IF_ERROR(CheckJobId(request.job_id()));
  return DeleteJobEvent{request.request_id(), JobId(request.job_id())};
}

absl::StatusOr<RegisterWorkerEvent> Decode(const v1::RegisterWorkerRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  RETURN_IF_ERROR(CheckWorkerId("worker_id", request.worker_id()));
  RETURN_IF_ERROR(CheckRange("num_devices", request.num_devices(), 1, kMaxDevices));
  RETURN_IF_ERROR(CheckRange("incarnation", request.incarnation(), 0, kMaxIncarnation));
  RETURN_IF_ERROR(CheckName("address", request.address()));
  Member member;
  member.incarnation = Incarnation(request.incarnation());
  member.num_devices = request.num_devices();
  member.address = request.address();
  if (!request.data_host().empty()) RETURN_IF_ERROR(CheckName("data_host", request.data_host()));
  member.data_host = request.data_host();
  RETURN_IF_ERROR(CheckRange("max_ranks_of_job", request.max_ranks_of_job(), 0, kMaxDevices));
  member.max_ranks_of_job = request.max_ranks_of_job();
  if (!request.device().empty()) RETURN_IF_ERROR(CheckName("device", request.device()));
  member.device = request.device();
  RETURN_IF_ERROR(CheckRange("memory_bytes", request.memory_bytes(), 0, kMaxMemoryBytes));
  member.memory_bytes = request.memory_bytes();
  // Long enough that it cannot be guessed.
  RETURN_IF_ERROR(CheckRange("size of key in bytes", request.key().size(), 16, 64));
  member.key = request.key();
  if (!request.cluster_id().empty()) RETURN_IF_ERROR(CheckName("cluster_id", request.cluster_id()));
  return RegisterWorkerEvent{WorkerId(request.worker_id()), std::move(member), request.cluster_id(),
                             request.heard_start(), request.heard_changes()};
}

absl::StatusOr<Sender> DecodeSender(const v1::WorkerEvent& event) {
  RETURN_IF_ERROR(CheckWorkerId("worker_id", event.worker_id()));
  return Sender{WorkerId(event.worker_id()), Incarnation(event.incarnation())};
}

absl::StatusOr<StreamEvent> Decode(const v1::WorkerEvent& event) {
  switch (event.event_case()) {
    case v1::WorkerEvent::kHeartbeat:
      return DecodeHeartbeat(event.heartbeat());
    case v1::WorkerEvent::kOrder:
      return DecodeOrder(event.order());
    case v1::WorkerEvent::kStep:
      return DecodeStep(event.step());
    case v1::WorkerEvent::kPrepared:
      return DecodePrepared(event.prepared());
    case v1::WorkerEvent::kFailure: {
      RETURN_IF_ERROR(CheckJobId(event.failure().job_id()));
      // The trainers of all ranks get the code, so it has to be one of absl's.
      return RankFailure{JobId(event.failure().job_id()),
                         Generation(event.failure().generation()),
                         Epoch(event.failure().epoch()),
                         Rank(event.failure().rank()),
                         std::string(Truncated(event.failure().reason())),
                         std::clamp(event.failure().code(), 0, kMaxStatusCode)};
    }
    case v1::WorkerEvent::kSave:
      return DecodeSaveReport(event.save());
    case v1::WorkerEvent::kHeld:
      return DecodeHeld(event.held());
    case v1::WorkerEvent::EVENT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("worker event: none of the known events is set");
}

v1::Job Encode(const JobView& view) {
  v1::Job job = EncodeSummary(view);
  *job.mutable_model() = EncodeModel(view.spec->model);
  return job;
}

v1::Job EncodeSummary(const JobView& view) {
  v1::Job job;
  // Without what is in them: lists show no more than how many units there are.
  for (size_t unit = 0; unit < view.spec->model.units.size(); ++unit)
    job.mutable_model()->add_units();
  job.set_job_id(view.id.value());
  job.set_generation(view.generation.value());
  job.set_owner(view.owner);
  *job.mutable_config() = EncodeJobConfig(view.spec->config);
  const bool is_completed = view.status.completed && view.status.state == JobState::kRunning;
  job.set_state(is_completed ? v1::JOB_STATE_COMPLETED : EncodeState(view.status.state));
  job.set_epoch(view.status.epoch.value());
  job.set_committed_step(view.committed_step.value());
  for (size_t rank = 0; rank < view.status.placements.size(); ++rank) {
    v1::RankPlacement* placement = job.add_placements();
    placement->set_rank(rank);
    placement->set_worker_id(view.status.placements[rank].worker.value());
    placement->set_device(view.status.placements[rank].device);
    placement->set_since_epoch(view.status.placements[rank].since.value());
  }
  job.set_layout_digest(view.spec->layout_digest);
  job.set_state_reason(view.status.reason);
  for (const auto& [rank, status] : view.ranks) {
    (*job.mutable_ranks())[rank] = EncodeRankStatus(status);
  }
  return job;
}

v1::CoordinatorCommand Encode(const Command& command) {
  v1::CoordinatorCommand encoded;
  std::visit([&](const auto& c) { EncodeInto(c, &encoded); }, command);
  return encoded;
}

}  // namespace tessera::coordinator
