#include "coordinator/core/coordinator.h"

#include <algorithm>

#include "base/status_macros.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/epoch_protocol.h"
#include "coordinator/core/hand_over_protocol.h"
#include "coordinator/core/job_requests.h"
#include "coordinator/core/job_saves.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/orphan_adopter.h"
#include "coordinator/core/rank_watch.h"
#include "coordinator/core/worker_reports.h"

namespace tessera::coordinator {

struct Coordinator::Parts {
  explicit Parts(const CoordinatorOptions& options)
      : state(options),
        saves(&state),
        epochs(&state, &saves),
        hand_overs(&state, &saves, &epochs),
        orphans(&state, &epochs),
        reports(&state, &saves, &epochs, &orphans),
        members(&state, &epochs),
        jobs(&state, &epochs, &orphans, &members),
        watch(&state) {}

  // In the order of use: a part points only to parts above it, which are destroyed after it.
  CoordinatorState state;
  JobSaves saves;
  EpochProtocol epochs;
  HandOverProtocol hand_overs;
  OrphanAdopter orphans;
  WorkerReports reports;
  Membership members;
  JobRequests jobs;
  RankWatch watch;
};

Coordinator::Coordinator(const CoordinatorOptions& options)
    : parts_(std::make_unique<Parts>(options)) {}
Coordinator::Coordinator(Coordinator&& other) noexcept = default;
Coordinator& Coordinator::operator=(Coordinator&& other) noexcept = default;
Coordinator::~Coordinator() = default;

absl::StatusOr<Coordinator> Coordinator::Restore(const CoordinatorOptions& options,
                                                 const std::vector<StateRecord>& records,
                                                 absl::Time now) {
  Coordinator coordinator(options);
  RETURN_IF_ERROR(coordinator.parts_->state.Replay(records));
  // No worker could report while the coordinator was away.
  coordinator.parts_->members.HeardAll(now);
  return coordinator;
}

void Coordinator::Accept() {
  // An end of a save is dropped from memory only now that its record is durable.
  parts_->saves.Accept();
  // After the state's Accept: until then Rollback could have brought the deleted jobs back.
  if (parts_->state.Accept()) parts_->epochs.ForgetDeletedJobs();
}

void Coordinator::Rollback() {
  parts_->saves.Rollback();
  parts_->state.Rollback();
}

const std::string& Coordinator::cluster() const { return parts_->state.durable().cluster().id; }

void Coordinator::NameCluster(const std::string& id, Effects* effects) {
  CoordinatorState& state = parts_->state;
  state.Put(ClusterRecord{id, state.durable().cluster().first_save_number, false}, effects);
}

void Coordinator::TakeOverHeld(absl::Time until, int64_t first_save_number, Effects* effects) {
  CoordinatorState& state = parts_->state;
  state.TakeOverUntil(until);
  const ClusterRecord& cluster = state.durable().cluster();
  // Never lower than before: workers may have heard of requests up to the journal's number.
  first_save_number = std::max(first_save_number, cluster.first_save_number);
  state.Put(ClusterRecord{cluster.id, first_save_number, true}, effects);
}

bool Coordinator::is_taking_over() const {
  return parts_->state.durable().cluster().is_taking_over;
}

void Coordinator::Quarantine(const JobId& job, const std::string& reason) {
  parts_->state.Quarantine(job, reason);
}

absl::StatusOr<JobView> Coordinator::CreateJob(const CreateJobEvent& event, absl::Time now,
                                               Effects* effects) {
  return parts_->jobs.CreateJob(event, now, effects);
}

absl::Status Coordinator::DeleteJob(const DeleteJobEvent& event, absl::Time now, Effects* effects) {
  return parts_->jobs.DeleteJob(event, now, effects);
}

absl::StatusOr<JobView> Coordinator::GetJob(const JobId& job) const {
  return parts_->jobs.GetJob(job);
}

std::vector<JobView> Coordinator::ListJobs(const JobId& after, size_t max_jobs) const {
  return parts_->jobs.ListJobs(after, max_jobs);
}

absl::Status Coordinator::RegisterWorker(const WorkerId& worker, const Member& member,
                                         absl::Time now, Effects* effects) {
  return parts_->members.RegisterWorker(worker, member, now, effects);
}

const MemberRegistry& Coordinator::members() const { return parts_->state.members(); }

// Other than a job that does not exist: of all.
Claims Coordinator::claims() const { return parts_->state.durable().ClaimedByOthers(JobId()); }

Incarnation Coordinator::IncarnationOf(const WorkerId& worker, const std::string& key) const {
  return parts_->members.IncarnationOf(worker, key);
}

absl::Status Coordinator::CheckKey(const WorkerId& worker, Incarnation incarnation,
                                   const std::string& key) const {
  return parts_->members.CheckKey(worker, incarnation, key);
}

absl::Duration Coordinator::SilentFor(const WorkerId& worker, absl::Time now) const {
  return parts_->members.SilentFor(worker, now);
}

absl::Status Coordinator::Connect(const Sender& sender, absl::Time now, Effects* effects) {
  RETURN_IF_ERROR(parts_->members.Connect(sender, now, effects));
  // After the life has begun: a command that this has sent already is not sent twice.
  parts_->reports.ResendOnConnect(sender, effects);
  return absl::OkStatus();
}

void Coordinator::Disconnected(const WorkerId& worker) { parts_->members.Disconnected(worker); }

absl::Status Coordinator::Heartbeat(const Sender& sender, const std::vector<JobProgress>& jobs,
                                    absl::Time now, Effects* effects) {
  // First, here and below: a report that is refused shows all the same that the worker lives.
  RETURN_IF_ERROR(parts_->members.Hear(sender, now, effects));
  return parts_->reports.Heartbeat(sender, jobs, now, effects);
}

absl::Status Coordinator::Announce(const Sender& sender, const OrderAnnouncement& event,
                                   absl::Time now, Effects* effects) {
  RETURN_IF_ERROR(parts_->members.Hear(sender, now, effects));
  return parts_->reports.Announce(sender, event, now, effects);
}

absl::Status Coordinator::ReportStep(const Sender& sender, const StepReport& event, absl::Time now,
                                     Effects* effects) {
  RETURN_IF_ERROR(parts_->members.Hear(sender, now, effects));
  return parts_->reports.ReportStep(sender, event, now, effects);
}

absl::Status Coordinator::ReportFailure(const Sender& sender, const RankFailure& event,
                                        absl::Time now, Effects* effects) {
  RETURN_IF_ERROR(parts_->members.Hear(sender, now, effects));
  return parts_->reports.ReportFailure(sender, event, now, effects);
}

absl::Status Coordinator::ReportPrepared(const Sender& sender, const EpochPrepared& event,
                                         absl::Time now, Effects* effects) {
  RETURN_IF_ERROR(parts_->members.Hear(sender, now, effects));
  return parts_->reports.ReportPrepared(sender, event, now, effects);
}

absl::Status Coordinator::ReportHeld(const Sender& sender, const HeldJob& event, absl::Time now,
                                     Effects* effects) {
  RETURN_IF_ERROR(parts_->members.Hear(sender, now, effects));
  return parts_->orphans.ReportHeld(sender, event, now, effects);
}

absl::Status Coordinator::OfferHandOver(const HandOverOffer& offer, absl::Time now,
                                        Effects* effects) {
  return parts_->hand_overs.OfferHandOver(offer, now, effects);
}

void Coordinator::WithdrawOffer(const HandOverOffer& offer) {
  parts_->hand_overs.WithdrawOffer(offer);
}

absl::Status Coordinator::CancelHandOver(const JobId& job, const std::string& reason,
                                         absl::Time now, Effects* effects) {
  return parts_->hand_overs.CancelHandOver(job, reason, now, effects);
}

absl::Status Coordinator::TakeOverJob(const TakeOver& event, absl::Time now, Effects* effects) {
  return parts_->hand_overs.TakeOverJob(event, now, effects);
}

absl::StatusOr<SaveView> Coordinator::RequestSave(const RequestSaveEvent& event, absl::Time now,
                                                  Effects* effects) {
  return parts_->saves.RequestSave(event, now, effects);
}

absl::StatusOr<SaveView> Coordinator::CancelSave(const JobId& job, int64_t number, absl::Time now,
                                                 Effects* effects) {
  return parts_->saves.CancelSave(job, number, now, effects);
}

absl::StatusOr<SaveView> Coordinator::GetSave(const JobId& job, int64_t number) const {
  return parts_->saves.GetSave(job, number);
}

absl::StatusOr<std::vector<SaveView>> Coordinator::ListSaves(const JobId& job) const {
  return parts_->saves.ListSaves(job);
}

absl::Status Coordinator::ReportSave(const Sender& sender, const SaveReport& event, absl::Time now,
                                     Effects* effects) {
  RETURN_IF_ERROR(parts_->members.Hear(sender, now, effects));
  return parts_->saves.ReportSave(sender, event, now, effects);
}

void Coordinator::Tick(absl::Time now, Effects* effects) {
  CoordinatorState& state = parts_->state;
  // Observe comes before DeclareLost, so that the coordinator's own pause is nobody's silence.
  state.EndTakeOver(now, parts_->members.Observe(now), effects);
  // Only marks the workers. AdvanceAll below ends the epochs that had ranks on them.
  parts_->members.DeclareLost(now, effects);
  parts_->epochs.FlushSteps(effects);
  for (auto& [id, avoided] : state.avoided) avoided.Expire(state.members(), now);
  parts_->saves.NoteHeardSaves(now, effects);  // First, so that a save that ended does not expire.
  parts_->saves.WithdrawExpiredSaves(now, effects);
  parts_->epochs.CheckPreparing(now);  // Only marks the failures on which AdvanceAll acts.
  parts_->hand_overs.AdvanceHandOvers(now, effects);
  parts_->epochs.AdvanceAll(now, effects);
  // Last, because AdvanceAll may have placed the ranks of a lost worker elsewhere.
  parts_->members.ForgetLostMembers(effects);
}

void Coordinator::WatchRanks(absl::Time now, Effects* effects) { parts_->watch.Look(now, effects); }

}  // namespace tessera::coordinator
