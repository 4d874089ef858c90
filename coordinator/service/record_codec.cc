#include "coordinator/service/record_codec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "coordinator/core/job_spec.h"
#include "coordinator/core/order_validator.h"
#include "coordinator/storage/records.pb.h"
#include "job/job_codec.h"
#include "job/save_spec_codec.h"

namespace tessera::coordinator {
namespace {

using Kind = JournalChange::Kind;
using Key = std::vector<std::string>;  // The parts of a row's key between slashes.

// --- core -> rows ---

journal::JobStatus EncodeStatus(const JobStatus& status) {
  journal::JobStatus encoded;
  encoded.set_state(static_cast<journal::JobStatus::State>(status.state));
  encoded.set_epoch(status.epoch.value());
  encoded.set_resume_step(status.resume_step.value());
  for (const RankPlacement& placement : status.placements) {
    journal::Placement* p = encoded.add_placements();
    p->set_worker_id(placement.worker.value());
    p->set_device(placement.device);
    p->set_incarnation(placement.incarnation.value());
    p->set_since_epoch(placement.since.value());
  }
  encoded.set_reason(status.reason);
  encoded.set_bound(status.bound);
  encoded.mutable_rank_addresses()->insert(status.rank_addresses.begin(),
                                           status.rank_addresses.end());
  encoded.set_decision(status.decision);
  encoded.set_failure_code(status.failure_code);
  for (const WorkerId& worker : status.unconfirmed) encoded.add_unconfirmed(worker.value());
  encoded.set_completed(status.completed);
  for (const auto& [rank, attachment] : status.completed_after)
    (*encoded.mutable_completed_after())[rank] = attachment.value();
  encoded.mutable_rebuilt_ranks()->Add(status.rebuilt_ranks.begin(), status.rebuilt_ranks.end());
  return encoded;
}

journal::BootTime EncodeBootTime(absl::Time time, const JournalClock& clock) {
  journal::BootTime encoded;
  encoded.set_ns(absl::ToUnixNanos(time + clock.boot_lead));
  encoded.set_boot_id(clock.boot_id);
  return encoded;
}

journal::Save EncodeSave(const Save& save, const JournalClock& clock) {
  journal::Save encoded;
  encoded.set_request_id(save.request_id);
  EncodeCheckpointSpec(save.spec, &encoded);
  encoded.set_state(static_cast<journal::Save::State>(save.state));
  // Later processes cannot read the clock of the core's times, so the wall clock's are stored.
  encoded.set_requested_ns(absl::ToUnixNanos(save.requested_at + clock.wall_lead));
  if (save.expires_at != absl::InfiniteFuture()) {
    encoded.set_expires_ns(absl::ToUnixNanos(save.expires_at + clock.wall_lead));
    // Also by the clock of this boot, which nobody sets: see DecodeDeadline.
    *encoded.mutable_expires_since_boot() = EncodeBootTime(save.expires_at, clock);
  }
  encoded.set_tries(save.tries);
  encoded.set_last_failure(save.last_failure);
  encoded.set_cancelled(save.cancelled);
  encoded.set_step(save.step.value());
  encoded.set_ended_sequence(save.ended_sequence);
  encoded.set_ended_ns(absl::ToUnixNanos(save.ended_at + clock.wall_lead));
  encoded.set_epoch(save.epoch.value());
  encoded.set_ordinal(save.ordinal);
  encoded.set_took_ns(absl::ToInt64Nanoseconds(save.took));
  encoded.set_size_bytes(save.size_bytes);
  encoded.set_code(save.outcome.raw_code());
  encoded.set_message(std::string(save.outcome.message()));
  encoded.set_fate(static_cast<journal::Save::Fate>(save.fate));
  return encoded;
}

constexpr char kClusterKey[] = "cluster";

std::string SaveKey(const JobId& job, int64_t number) {
  // Padded, so that the rows are in the order of the numbers.
  return absl::StrFormat("job/%s/save/%019d", job.value(), number);
}

struct Encoder {
  std::vector<JournalChange>* batch;
  const JournalClock& clock;

  template <typename Message>
  void Put(std::string key, const Message& message) {
    batch->push_back({Kind::kPut, std::move(key), message.SerializeAsString()});
  }
  void Delete(Kind kind, std::string key) { batch->push_back({kind, std::move(key), ""}); }

  void operator()(const JobSpecRecord& r) {
    journal::JobSpec spec;
    spec.set_model(EncodeModel(r.spec->model).SerializeAsString());
    spec.set_config(EncodeJobConfig(r.spec->config).SerializeAsString());
    spec.set_submitting_rank(r.spec->submitting_rank);
    spec.set_layout_digest(r.spec->layout_digest);
    spec.set_generation(r.generation.value());
    spec.set_owner(r.owner);
    spec.set_attach_key(r.attach_key);
    Put(absl::StrCat("job/", r.job.value(), "/spec"), spec);
  }
  void operator()(const JobStatusRecord& r) {
    Put(absl::StrCat("job/", r.job.value(), "/status"), EncodeStatus(r.status));
  }
  void operator()(const HandOverRecord& r) {
    const HandOver& from = r.hand_over;
    journal::HandOver hand_over;
    hand_over.set_phase(static_cast<journal::HandOver::Phase>(from.phase));
    hand_over.set_number(from.number);
    hand_over.set_step(from.step.value());
    hand_over.set_frozen(from.frozen);
    hand_over.set_deadline_unix_ms(absl::ToUnixMillis(from.deadline + clock.wall_lead));
    *hand_over.mutable_deadline_since_boot() = EncodeBootTime(from.deadline, clock);
    hand_over.set_taker(from.taker.value());
    hand_over.set_taker_generation(from.taker_generation.value());
    hand_over.set_reason(from.reason);
    for (const std::string& state : *from.trainer_states) hand_over.add_trainer_states(state);
    Put(absl::StrCat("job/", r.job.value(), "/hand-over"), hand_over);
  }
  void operator()(const JobStepRecord& r) {
    journal::JobStep step;
    step.set_committed_step(r.committed_step.value());
    Put(absl::StrCat("job/", r.job.value(), "/step"), step);
  }
  void operator()(const JobGoneRecord& r) {
    Delete(Kind::kDeletePrefix, absl::StrCat("job/", r.job.value(), "/"));
    // Orders have a prefix of their own, so that the end of an epoch deletes them alone.
    (*this)(EpochOverRecord{r.job});
  }
  void operator()(const MemberRecord& r) {
    journal::Member member;
    member.set_incarnation(r.member.incarnation.value());
    member.set_num_devices(r.member.num_devices);
    member.set_address(r.member.address);
    member.set_data_host(r.member.data_host);
    member.set_max_ranks_of_job(r.member.max_ranks_of_job);
    member.set_device(r.member.device);
    member.set_memory_bytes(r.member.memory_bytes);
    member.set_key(r.member.key);
    member.set_lost(r.member.lost);
    Put(absl::StrCat("member/", r.worker.value()), member);
  }
  void operator()(const MemberGoneRecord& r) {
    Delete(Kind::kDelete, absl::StrCat("member/", r.worker.value()));
  }
  void operator()(const RequestRecord& r) {
    journal::Request request;
    request.set_kind(static_cast<journal::Request::Kind>(r.request.kind));
    request.set_job_id(r.request.job.value());
    *request.mutable_reply() = EncodeStatus(r.request.reply);
    request.set_sequence(r.request.sequence);
    Put(absl::StrCat("request/", r.request_id), request);
  }
  void operator()(const RequestGoneRecord& r) {
    Delete(Kind::kDelete, absl::StrCat("request/", r.request_id));
  }
  void operator()(const OrderRecord& r) {
    journal::Order order;
    order.set_step(r.position.step.value());
    order.set_pass(r.position.pass);
    order.set_operation(r.entry.operation);
    order.set_unit(r.entry.unit.value());
    order.set_dtype(EncodeDType(r.entry.dtype));
    order.set_count(r.entry.count_elements);
    Put(absl::StrFormat("order/%s/%d/%07d", r.job.value(), r.epoch.value(), r.position.sequence),
        order);
  }
  void operator()(const DeletedJobRecord& r) {
    journal::DeletedJob deleted;
    deleted.set_generation(r.generation.value());
    Put(absl::StrCat("deleted/", r.job.value()), deleted);
  }
  void operator()(const DeletedJobGoneRecord& r) {
    Delete(Kind::kDelete, absl::StrCat("deleted/", r.job.value()));
  }
  void operator()(const ClusterRecord& r) {
    journal::Cluster cluster;
    cluster.set_id(r.id);
    cluster.set_first_save_number(r.first_save_number);
    cluster.set_is_taking_over(r.is_taking_over);
    Put(kClusterKey, cluster);
  }
  void operator()(const EpochOverRecord& r) {
    Delete(Kind::kDeletePrefix, absl::StrCat("order/", r.job.value(), "/"));
  }
  void operator()(const SaveRecord& r) {
    Put(SaveKey(r.job, r.save.number), EncodeSave(r.save, clock));
  }
  void operator()(const SaveGoneRecord& r) { Delete(Kind::kDelete, SaveKey(r.job, r.number)); }
};

// --- rows -> core ---

absl::Status Unreadable(const JournalRow& row, absl::string_view why) {
  return absl::DataLossError(absl::StrCat("journal record '", row.key, "': ", why));
}

template <typename Message>
absl::StatusOr<Message> Parse(const JournalRow& row) {
  Message message;
  // The row's checksum is right, so another version of this program wrote it.
  if (!message.ParseFromString(row.value)) return Unreadable(row, "its value cannot be parsed");
  return message;
}

absl::StatusOr<JobStatus> DecodeStatus(const JournalRow& row, const journal::JobStatus& status) {
  if (!journal::JobStatus::State_IsValid(status.state())) {
    return Unreadable(row, absl::StrCat("state ", static_cast<int>(status.state()), " is unknown"));
  }
  JobStatus decoded;
  decoded.state = static_cast<JobState>(status.state());
  decoded.bound = status.bound();
  decoded.rank_addresses.insert(status.rank_addresses().begin(), status.rank_addresses().end());
  decoded.decision = status.decision();
  decoded.failure_code = status.failure_code();
  for (const std::string& worker : status.unconfirmed()) decoded.unconfirmed.emplace(worker);
  decoded.completed = status.completed();
  for (const auto& [rank, attachment] : status.completed_after())
    decoded.completed_after[rank] = Incarnation(attachment);
  decoded.rebuilt_ranks.insert(status.rebuilt_ranks().begin(), status.rebuilt_ranks().end());
  decoded.epoch = Epoch(status.epoch());
  decoded.resume_step = Step(status.resume_step());
  for (const journal::Placement& p : status.placements()) {
    decoded.placements.push_back({WorkerId(p.worker_id()), p.device(), Incarnation(p.incarnation()),
                                  Epoch(p.since_epoch())});
  }
  decoded.reason = status.reason();
  return decoded;
}

absl::StatusOr<StateRecord> DecodeJobSpec(const JournalRow& row, const JobId& job) {
  ASSIGN_OR_RETURN(const journal::JobSpec message, Parse<journal::JobSpec>(row));
  v1::ModelSpec model;
  v1::JobConfig config;
  if (!model.ParseFromString(message.model()) || !config.ParseFromString(message.config())) {
    return Unreadable(row, "its model or config cannot be parsed");
  }
  absl::StatusOr<ModelSpec> decoded_model = DecodeModel(model);
  if (!decoded_model.ok()) return Unreadable(row, decoded_model.status().message());
  absl::StatusOr<JobConfig> decoded_config = DecodeJobConfig(config);
  if (!decoded_config.ok()) return Unreadable(row, decoded_config.status().message());
  auto spec =
      std::make_shared<JobSpec>(JobSpec{*std::move(decoded_model), *std::move(decoded_config),
                                        message.submitting_rank(), message.layout_digest()});
  // Not in the row, because they follow from the model and the config.
  if (const absl::Status status = SetMemoryNeeds(spec.get()); !status.ok())
    return Unreadable(row, status.message());
  return JobSpecRecord{job, std::move(spec), Generation(message.generation()), message.owner(),
                       message.attach_key()};
}

// In the boot that wrote it, a deadline does not move when the wall clock is set.
absl::Time DecodeDeadline(absl::Time wall, const journal::BootTime& since_boot,
                          const JournalClock& clock) {
  const bool is_of_this_boot = !clock.boot_id.empty() && since_boot.boot_id() == clock.boot_id;
  return is_of_this_boot ? absl::FromUnixNanos(since_boot.ns()) - clock.boot_lead
                         : wall - clock.wall_lead;
}

absl::StatusOr<StateRecord> DecodeHandOver(const JournalRow& row, const JobId& job,
                                           const JournalClock& clock) {
  ASSIGN_OR_RETURN(journal::HandOver message, Parse<journal::HandOver>(row));
  if (!journal::HandOver::Phase_IsValid(message.phase())) return Unreadable(row, "unknown phase");
  HandOver hand_over;
  hand_over.phase = static_cast<HandOverPhase>(message.phase());
  hand_over.number = message.number();
  hand_over.step = Step(message.step());
  hand_over.frozen = message.frozen();
  hand_over.deadline = DecodeDeadline(absl::FromUnixMillis(message.deadline_unix_ms()),
                                      message.deadline_since_boot(), clock);
  hand_over.taker = JobId(message.taker());
  hand_over.taker_generation = Generation(message.taker_generation());
  hand_over.reason = message.reason();
  hand_over.trainer_states = std::make_shared<const std::vector<std::string>>(
      message.trainer_states().begin(), message.trainer_states().end());
  return HandOverRecord{job, std::move(hand_over)};
}

absl::StatusOr<StateRecord> DecodeSave(const JournalRow& row, const Key& key,
                                       const JournalClock& clock) {
  Save save;
  if (!absl::SimpleAtoi(key[3], &save.number) || save.number < 1)
    return Unreadable(row, "its key is of no known form");
  ASSIGN_OR_RETURN(const journal::Save message, Parse<journal::Save>(row));
  if (!journal::Save::State_IsValid(message.state()) ||
      !journal::Save::Fate_IsValid(message.fate())) {
    return Unreadable(row, "its state or fate is unknown");
  }
  save.request_id = message.request_id();
  save.spec = DecodeCheckpointSpec(message);
  save.state = static_cast<SaveState>(message.state());
  save.requested_at = absl::FromUnixNanos(message.requested_ns()) - clock.wall_lead;
  // 0 stands for a request that does not expire.
  if (message.expires_ns() != 0)
    save.expires_at = DecodeDeadline(absl::FromUnixNanos(message.expires_ns()),
                                     message.expires_since_boot(), clock);
  save.tries = message.tries();
  save.last_failure = message.last_failure();
  save.cancelled = message.cancelled();
  save.step = Step(message.step());
  save.ended_sequence = message.ended_sequence();
  save.ended_at = absl::FromUnixNanos(message.ended_ns()) - clock.wall_lead;
  save.epoch = Epoch(message.epoch());
  save.ordinal = message.ordinal();
  save.took = absl::Nanoseconds(message.took_ns());
  save.size_bytes = message.size_bytes();
  save.outcome = absl::Status(static_cast<absl::StatusCode>(message.code()), message.message());
  save.fate = static_cast<SaveFate>(message.fate());
  return SaveRecord{JobId(key[1]), std::move(save)};
}

absl::StatusOr<StateRecord> DecodeJob(const JournalRow& row, const Key& key,
                                      const JournalClock& clock) {
  if (key.size() == 4 && key[2] == "save") return DecodeSave(row, key, clock);
  if (key.size() != 3) return Unreadable(row, "its key is of no known form");
  const JobId job(key[1]);
  if (key[2] == "spec") return DecodeJobSpec(row, job);
  if (key[2] == "hand-over") return DecodeHandOver(row, job, clock);
  if (key[2] == "status") {
    ASSIGN_OR_RETURN(const journal::JobStatus message, Parse<journal::JobStatus>(row));
    ASSIGN_OR_RETURN(JobStatus status, DecodeStatus(row, message));
    return JobStatusRecord{job, std::move(status)};
  }
  if (key[2] != "step") return Unreadable(row, "its key is of no known form");
  ASSIGN_OR_RETURN(const journal::JobStep message, Parse<journal::JobStep>(row));
  return JobStepRecord{job, Step(message.committed_step())};
}

absl::StatusOr<StateRecord> DecodeRequest(const JournalRow& row, std::string request_id) {
  ASSIGN_OR_RETURN(const journal::Request message, Parse<journal::Request>(row));
  if (!journal::Request::Kind_IsValid(message.kind())) return Unreadable(row, "unknown kind");
  Request request;
  request.kind = static_cast<RequestKind>(message.kind());
  request.job = JobId(message.job_id());
  ASSIGN_OR_RETURN(request.reply, DecodeStatus(row, message.reply()));
  request.sequence = message.sequence();
  return RequestRecord{std::move(request_id), std::move(request)};
}

absl::StatusOr<StateRecord> DecodeOrder(const JournalRow& row, const Key& key) {
  int64_t epoch = 0;
  int64_t sequence = 0;
  // Restore grows the record to this sequence, so it is bounded.
  if (key.size() != 4 || !absl::SimpleAtoi(key[2], &epoch) ||
      !absl::SimpleAtoi(key[3], &sequence) || sequence < 0 || sequence >= kMaxSequence) {
    return Unreadable(row, "its key is of no known form");
  }
  ASSIGN_OR_RETURN(const journal::Order message, Parse<journal::Order>(row));
  absl::StatusOr<DType> dtype = DecodeDType(static_cast<v1::DType>(message.dtype()));
  if (!dtype.ok()) return Unreadable(row, dtype.status().message());
  return OrderRecord{JobId(key[1]),
                     Epoch(epoch),
                     {Step(message.step()), sequence, message.pass()},
                     {message.operation(), UnitId(message.unit()), *dtype, message.count()}};
}

absl::StatusOr<StateRecord> DecodeMember(const JournalRow& row, const WorkerId& worker) {
  ASSIGN_OR_RETURN(const journal::Member message, Parse<journal::Member>(row));
  Member member;
  member.incarnation = Incarnation(message.incarnation());
  member.num_devices = message.num_devices();
  member.address = message.address();
  member.data_host = message.data_host();
  member.max_ranks_of_job = message.max_ranks_of_job();
  member.device = message.device();
  member.memory_bytes = message.memory_bytes();
  member.key = message.key();
  member.lost = message.lost();
  return MemberRecord{worker, std::move(member)};
}

}  // namespace

void EncodeRecord(const StateRecord& record, std::vector<JournalChange>* batch,
                  const JournalClock& clock) {
  std::visit(Encoder{batch, clock}, record);
}

absl::StatusOr<StateRecord> DecodeRecord(const JournalRow& row, const JournalClock& clock) {
  // Request ids may contain slashes, so only the first slash separates.
  const std::pair<std::string, std::string> head = absl::StrSplit(row.key, absl::MaxSplits('/', 1));
  const Key key = absl::StrSplit(row.key, '/');
  if (head.first == "job") return DecodeJob(row, key, clock);
  if (head.first == "member") return DecodeMember(row, WorkerId(head.second));
  if (head.first == "request") return DecodeRequest(row, head.second);
  if (head.first == "order") return DecodeOrder(row, key);
  if (head.first == "deleted") {
    ASSIGN_OR_RETURN(const journal::DeletedJob deleted, Parse<journal::DeletedJob>(row));
    return DeletedJobRecord{JobId(head.second), Generation(deleted.generation())};
  }
  if (row.key == kClusterKey) {
    ASSIGN_OR_RETURN(const journal::Cluster cluster, Parse<journal::Cluster>(row));
    if (cluster.id().empty()) return Unreadable(row, "it names no cluster");
    return ClusterRecord{cluster.id(), std::max<int64_t>(cluster.first_save_number(), 1),
                         cluster.is_taking_over()};
  }
  return Unreadable(row, "its key is of no known form");
}

std::optional<JobId> JobOfRow(const JournalRow& row) {
  const std::vector<std::string> key = absl::StrSplit(row.key, '/');
  const bool is_of_job = key.size() > 2 && (key[0] == "job" || key[0] == "order");
  return is_of_job ? std::optional<JobId>(key[1]) : std::nullopt;
}

bool CanDoWithout(const JournalRow& row) {
  // Workers register again, and clients repeat their requests.
  return absl::StartsWith(row.key, "member/") || absl::StartsWith(row.key, "request/") ||
         absl::StartsWith(row.key, "value/");  // Of a service that is gone.
}

}  // namespace tessera::coordinator
