#include "coordinator/service/coordinator_host.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/wall_time.h"
#include "coordinator/core/job_views.h"
#include "coordinator/service/field_checks.h"
#include "coordinator/service/record_codec.h"

namespace tessera::coordinator {
namespace {

// How often a waiting call checks whether its caller is still there.
constexpr absl::Duration kCancelPoll = absl::Milliseconds(250);

// Random, so that no two clusters have the same name.
std::string NewClusterId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

// The records that can be read. A job with an unreadable row is left out as a whole, with the
// reason. Of the rest, workers register again and requests are made again.
// Errors: DataLoss  it cannot be read which cluster this is
absl::StatusOr<std::vector<StateRecord>> DecodeRows(const std::vector<JournalRow>& rows,
                                                    std::map<JobId, std::string>* unreadable) {
  std::vector<StateRecord> records;
  std::vector<std::optional<JobId>> jobs;  // Of each of the records.
  for (const JournalRow& row : rows) {
    if (JournalStarts::IsRowOf(row)) continue;
    absl::StatusOr<StateRecord> record = DecodeRecord(row);
    const std::optional<JobId> job = JobOfRow(row);
    if (record.ok()) {
      records.push_back(*std::move(record));
      jobs.push_back(job);
    } else if (job.has_value()) {
      unreadable->emplace(*job, record.status().message());
    } else if (!CanDoWithout(row)) {
      return record.status();
    } else {
      TESSERA_LOG(ERROR, "{}: left out", std::string(record.status().message()));
    }
  }
  size_t kept = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    if (jobs[i].has_value() && unreadable->count(*jobs[i]) > 0) continue;
    if (kept != i) records[kept] = std::move(records[i]);
    ++kept;
  }
  // It only shrinks, so the value is not used.
  records.resize(kept, StateRecord(ClusterRecord{}));
  return records;
}

// Gives a journal without a name the wanted one or, if that is empty, a new one.
// Errors: FailedPrecondition  it has another name; InvalidArgument
absl::Status NameCluster(const std::string& wanted, Coordinator* core, Effects* effects) {
  if (core->cluster().empty()) {
    if (!wanted.empty() &&
        (wanted.size() != 32 || !std::all_of(wanted.begin(), wanted.end(), absl::ascii_isxdigit))) {
      return absl::InvalidArgumentError(
          absl::StrCat("cluster id '", absl::CHexEscape(Truncated(wanted, 80)),
                       "': must be 32 hexadecimal digits, as workers' logs have it"));
    }
    core->NameCluster(wanted.empty() ? NewClusterId() : wanted, effects);
    TESSERA_LOG(INFO, "the journal is new: cluster {}", core->cluster());
  }
  if (wanted.empty() || wanted == core->cluster()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the journal is of cluster ", core->cluster(), ", not of ", wanted));
}

// Names the cluster and, if workers may hold what the journal lacks, begins to take that over. In
// one batch: a journal that has only a name would not count as one that lacks anything.
// Errors: as NameCluster and Journal::Append
absl::Status BeginJournal(const CoordinatorHost::Options& options, bool is_new, absl::Time now,
                          Journal* journal, Coordinator* core) {
  Effects effects;
  RETURN_IF_ERROR(NameCluster(options.cluster_id, core, &effects));
  // Also if an earlier process began to take over and ended before all workers could report.
  if (options.older_journal || (is_new && !options.cluster_id.empty()) || core->is_taking_over())
    core->TakeOverHeld(now + options.core.worker_timeout, absl::ToUnixSeconds(WallNow()), &effects);
  if (effects.records.empty()) return absl::OkStatus();
  std::vector<JournalChange> batch;
  for (const StateRecord& record : effects.records) EncodeRecord(record, &batch);
  // Durable before any worker can register: a worker keeps the name of its cluster.
  RETURN_IF_ERROR(journal->Append(batch, Durability::kPowerLoss));
  core->Accept();
  return absl::OkStatus();
}

absl::Status Stopping() { return absl::UnavailableError("the coordinator is stopping"); }

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorHost>> CoordinatorHost::Create(
    const Options& options, std::unique_ptr<Journal> journal) {
  ASSIGN_OR_RETURN(const std::vector<JournalRow> rows, journal->ReadAll());
  std::map<JobId, std::string> unreadable;
  ASSIGN_OR_RETURN(const std::vector<StateRecord> records, DecodeRows(rows, &unreadable));
  const absl::Time now = options.clock->TimeNow();
  ASSIGN_OR_RETURN(Coordinator core, Coordinator::Restore(options.core, records, now));
  for (const auto& [job, reason] : unreadable) {
    TESSERA_LOG(ERROR, "job={} is set aside: {}", job.value(), reason);
    core.Quarantine(job, reason);
  }
  // Before the ticker and the first call, so that no event finds the cluster without a name.
  RETURN_IF_ERROR(BeginJournal(options, rows.empty(), now, journal.get(), &core));
  ASSIGN_OR_RETURN(JournalStarts starts, JournalStarts::Read(rows));
  auto host = std::unique_ptr<CoordinatorHost>(
      new CoordinatorHost(options, std::move(journal), std::move(starts), std::move(core)));
  ASSIGN_OR_RETURN(host->ticker_, StartThread("the coordinator's clock",
                                              [host = host.get()] { host->RunTicker(); }));
  return host;
}

CoordinatorHost::CoordinatorHost(const Options& options, std::unique_ptr<Journal> journal,
                                 JournalStarts starts, Coordinator core)
    : options_(options),
      cluster_(core.cluster()),
      num_changes_(journal->num_changes()),
      starts_(std::move(starts)),
      journal_(std::move(journal)),
      core_(std::move(core)) {}

absl::Status CoordinatorHost::CheckCluster(const WorkerId& worker,
                                           const std::string& cluster) const {
  if (cluster.empty() || cluster == cluster_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker '", worker.value(), "' holds jobs of cluster ", cluster,
      ", and this coordinator's journal is of cluster ", cluster_,
      ": give it the worker's coordinator, or start this one with the journal of that cluster; if "
      "that journal is lost, with a new one and --cluster-id=",
      cluster));
}

void CoordinatorHost::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    // To close one only cancels its stream. The stream's thread waits for this lock in Disconnect.
    for (auto& [worker, outbox] : outboxes_) outbox->Close();
    outboxes_.clear();
  }
  // After stopped_ is set, which those that wake look for.
  waits_.WakeAll();
  if (ticker_.joinable()) ticker_.join();
}

void CoordinatorHost::RunTicker() {
  absl::MutexLock lock(&mu_);
  while (!options_.clock->AwaitWithDeadline(&mu_, absl::Condition(&stopped_),
                                            options_.clock->TimeNow() + options_.tick_interval)) {
    RunLocked([](Coordinator& core, absl::Time now, Effects* effects) {
      core.Tick(now, effects);
      return absl::OkStatus();
    }).IgnoreError();  // Logged where it began; the next tick tries again.
    RunLocked([](Coordinator& core, absl::Time now, Effects* effects) {
      core.WatchRanks(now, effects);
      return absl::OkStatus();
    }).IgnoreError();  // It has no records, so that only Stop can refuse it.
    ++num_ticks_;
  }
}

bool CoordinatorHost::AwaitTick() {
  absl::MutexLock lock(&mu_);
  const auto ticked = [this, before = num_ticks_]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopped_ || num_ticks_ > before;
  };
  // Without a deadline: a journal that hangs has to show as the watchdog's missing answer (ADR 67).
  mu_.Await(absl::Condition(&ticked));
  return !stopped_;
}

absl::Status CoordinatorHost::RunLocked(Handler handler, bool* journal_failed) {
  if (stopped_) return Stopping();
  Effects effects;
  absl::Status status = handler(core_, options_.clock->TimeNow(), &effects);
  if (status.ok()) {
    status = WriteLocked(effects);
    if (!status.ok() && journal_failed != nullptr) *journal_failed = true;
  }
  if (!status.ok()) {
    // The commands of a refused event are dropped with `effects`: no worker hears of it.
    core_.Rollback();
    return status;
  }
  core_.Accept();
  // Under the same lock, so that workers get the commands in the order of the journal.
  DeliverLocked(std::move(effects));
  return absl::OkStatus();
}

absl::Status CoordinatorHost::WriteLocked(const Effects& effects) {
  // Their error refuses nothing, because they only help a restarted coordinator.
  if (!effects.order_records.empty()) WriteOrderLocked(effects);
  if (effects.records.empty()) return absl::OkStatus();
  std::vector<JournalChange> batch;
  for (const StateRecord& record : effects.records) EncodeRecord(record, &batch);
  absl::Status status = FaultPoint("journal.before_append");
  const absl::Time began = SteadyNow();
  if (status.ok()) status = journal_->Append(batch, Durability::kPowerLoss);
  NoteJournalLocked(status);
  const double took_s = absl::ToDoubleSeconds(SteadyNow() - began);
  const auto bound = std::lower_bound(kAppendBounds_s.begin(), kAppendBounds_s.end(), took_s);
  ++journal_times_.counts[bound - kAppendBounds_s.begin()];
  journal_times_.sum_s += took_s;
  if (status.ok()) {
    // Before the commands are sent, which tell the workers this number.
    num_changes_.store(journal_->num_changes());
    FaultPoint("journal.after_append").IgnoreError();  // A place to die in, not to fail.
    return absl::OkStatus();
  }
  const absl::StatusCode code = absl::IsResourceExhausted(status)
                                    ? absl::StatusCode::kResourceExhausted
                                    : absl::StatusCode::kUnavailable;
  return absl::Status(code, absl::StrCat("nothing was changed: ", status.message()));
}

void CoordinatorHost::WriteOrderLocked(const Effects& effects) {
  std::vector<JournalChange> batch;
  for (const OrderRecord& record : effects.order_records) EncodeRecord(record, &batch);
  NoteJournalLocked(journal_->Append(batch, Durability::kProcessDeath));
}

void CoordinatorHost::NoteJournalLocked(const absl::Status& status) {
  // Each tick tries again, and only a change is worth a line.
  if (status.ok() == journal_times_.healthy) return;
  journal_times_.healthy = status.ok();
  if (status.ok()) {
    TESSERA_LOG(INFO, "the journal can be written again");
  } else {
    TESSERA_LOG(ERROR, "the journal cannot be written: {}", status.ToString());
  }
}

void CoordinatorHost::DeliverLocked(Effects effects) {
  for (Outgoing& outgoing : effects.commands) {
    auto outbox = outboxes_.find(outgoing.worker);
    // A worker that is not connected gets what it missed when it connects (Connect) and when it
    // says what it holds (Heartbeat).
    if (outbox != outboxes_.end()) outbox->second->Push(std::move(outgoing.command));
  }
  const absl::Time now = ToWallTime(options_.clock->TimeNow());
  for (const auto& [job, cause] : effects.opened_epochs) ++num_epochs_[cause];
  // Before the states that follow from them.
  for (ClusterEvent& event : effects.events) events_.Add(std::move(event), now);
  for (const JobId& job : effects.changed_jobs) {
    waits_.WakeThoseOf(job);  // They look once this lock is released.
    absl::StatusOr<JobView> view = core_.GetJob(job);
    if (!view.ok()) {
      changed_at_.erase(job);
      logged_.erase(job);
      TESSERA_LOG(INFO, "job={} deleted", job.value());
      continue;
    }
    changed_at_[job] = ++last_change_;
    NoteStateLocked(*view, effects, now);
  }
}

void CoordinatorHost::NoteStateLocked(const JobView& job, const Effects& effects, absl::Time now) {
  const JobStatus& status = job.status;
  const bool is_completed = status.completed && status.state == JobState::kRunning;
  const auto logged = std::make_tuple(status.epoch, status.state, is_completed);
  const auto [last, is_new] = logged_.try_emplace(job.id, logged);
  if (!is_new && std::exchange(last->second, logged) == logged) return;  // Only a step further.
  const std::string state(is_completed ? "COMPLETED" : Name(status.state));
  TESSERA_LOG(INFO, "job={} epoch={} step={} {}: {}", job.id.value(), status.epoch.value(),
              job.committed_step.value(), state, status.reason);
  ClusterEvent event = EventOf(EventKind::kJobState, job, absl::StrCat(state, ": ", status.reason));
  const auto opened = effects.opened_epochs.find(job.id);
  const bool has_failed = opened != effects.opened_epochs.end() && IsFailure(opened->second);
  if (has_failed || status.state == JobState::kLost) {
    event.severity = EventSeverity::kError;
  } else if (status.state == JobState::kWaiting || status.state == JobState::kOrphaned) {
    event.severity = EventSeverity::kWarning;
  }
  events_.Add(std::move(event), now);
}

absl::StatusOr<JobView> CoordinatorHost::CreateJob(const CreateJobEvent& event) {
  absl::StatusOr<JobView> view = Stopping();
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(RunLocked([&](Coordinator& core, absl::Time now, Effects* effects) {
    view = core.CreateJob(event, now, effects);
    return view.status();
  }));
  return view;
}

absl::Status CoordinatorHost::DeleteJob(const DeleteJobEvent& event) {
  absl::MutexLock lock(&mu_);
  return RunLocked([&](Coordinator& core, absl::Time now, Effects* effects) {
    return core.DeleteJob(event, now, effects);
  });
}

absl::StatusOr<JobView> CoordinatorHost::GetJob(const JobId& job) {
  absl::MutexLock lock(&mu_);
  return core_.GetJob(job);
}

std::vector<JobView> CoordinatorHost::ListJobs(const JobId& after, size_t max_jobs) {
  absl::MutexLock lock(&mu_);
  return core_.ListJobs(after, max_jobs);
}

absl::StatusOr<Incarnation> CoordinatorHost::RegisterWorker(const RegisterWorkerEvent& event) {
  RETURN_IF_ERROR(CheckCluster(event.worker, event.cluster));
  Member member = event.member;
  absl::MutexLock lock(&mu_);
  if (const absl::Status heard = starts_.CheckHeard(
          event.worker.value(), {event.heard_start, event.heard_changes}, journal_->num_changes());
      !heard.ok()) {
    // Only the operator can know that the newest journal is lost.
    if (!options_.older_journal && options_.cluster_id.empty()) return heard;
    TESSERA_LOG(WARNING, "takes over what it holds: {}", std::string(heard.message()));
  }
  // Where the disk is full, workers go on with what they have heard before.
  const absl::Status noted = starts_.Note(journal_.get());
  NoteJournalLocked(noted);
  if (noted.ok()) start_.store(starts_.own());
  num_changes_.store(journal_->num_changes());
  RETURN_IF_ERROR(RunLocked([&](Coordinator& core, absl::Time now, Effects* effects) {
    if (member.incarnation == Incarnation())
      member.incarnation = core.IncarnationOf(event.worker, member.key);
    return core.RegisterWorker(event.worker, member, now, effects);
  }));
  return member.incarnation;
}

CoordinatorHost::JournalTimes CoordinatorHost::GetJournalTimes() {
  absl::MutexLock lock(&mu_);
  return journal_times_;
}

std::vector<CoordinatorHost::WorkerView> CoordinatorHost::ListWorkers() {
  absl::MutexLock lock(&mu_);
  const absl::Time now = options_.clock->TimeNow();
  std::vector<WorkerView> views;
  const Claims claims = core_.claims();
  for (const auto& [id, member] : core_.members().members()) {
    const auto bytes = claims.bytes.find(id);
    views.push_back(
        {id, member, core_.SilentFor(id, now), bytes == claims.bytes.end() ? 0 : bytes->second});
  }
  return views;
}

EventLog::Page CoordinatorHost::ListEvents(int64_t after_number, size_t max_events,
                                           size_t max_bytes,
                                           absl::FunctionRef<bool(const ClusterEvent&)> wanted) {
  absl::MutexLock lock(&mu_);
  return events_.After(after_number, max_events, max_bytes, wanted);
}

CoordinatorCounts CoordinatorHost::Counts() {
  absl::MutexLock lock(&mu_);
  CoordinatorCounts counts;
  counts.events = events_.counts();
  counts.epochs = num_epochs_;
  const auto mismatches = counts.events.find(EventKind::kOrderMismatch);
  counts.order_mismatches = mismatches == counts.events.end() ? 0 : mismatches->second;
  return counts;
}

absl::StatusOr<SaveView> CoordinatorHost::GetSave(const JobId& job, int64_t number) {
  absl::MutexLock lock(&mu_);
  return core_.GetSave(job, number);
}

absl::StatusOr<std::vector<SaveView>> CoordinatorHost::ListSaves(const JobId& job) {
  absl::MutexLock lock(&mu_);
  return core_.ListSaves(job);
}

absl::Status CoordinatorHost::Connect(const Sender& sender, const std::string& key,
                                      std::shared_ptr<Outbox> outbox) {
  absl::MutexLock lock(&mu_);
  // Before the outbox is exchanged: a process that only knows the worker's id ends no stream.
  RETURN_IF_ERROR(core_.CheckKey(sender.worker, sender.incarnation, key));
  // Before the core's Connect, whose commands are for this stream.
  std::shared_ptr<Outbox> previous = std::exchange(outboxes_[sender.worker], outbox);
  const absl::Status status = RunLocked([&](Coordinator& core, absl::Time now, Effects* effects) {
    return core.Connect(sender, now, effects);
  });
  if (status.ok()) {
    // Only now: a stream that is refused must not end the one that is current.
    if (previous != nullptr) previous->Close();
  } else if (previous != nullptr) {
    outboxes_[sender.worker] = std::move(previous);
  } else {
    outboxes_.erase(sender.worker);
  }
  return status;
}

void CoordinatorHost::Disconnect(const WorkerId& worker, const std::shared_ptr<Outbox>& outbox) {
  absl::MutexLock lock(&mu_);
  auto it = outboxes_.find(worker);
  if (it == outboxes_.end() || it->second != outbox) return;  // Another stream took its place.
  outboxes_.erase(it);
  core_.Disconnected(worker);
}

absl::Status CoordinatorHost::OnStreamEvent(const Sender& sender,
                                            const std::shared_ptr<Outbox>& outbox,
                                            const StreamEvent& event) {
  bool journal_failed = false;
  absl::MutexLock lock(&mu_);
  if (stopped_) return Stopping();
  const auto current = outboxes_.find(sender.worker);
  // What was read late of an older stream would undo what the newer one has said since: an
  // announcement, for example, takes the place of the rank's last one.
  if (current == outboxes_.end() || current->second != outbox) {
    return absl::AbortedError(absl::StrCat("a newer stream of worker '", sender.worker.value(),
                                           "' has taken this one's place"));
  }
  const absl::Status status = RunLocked(
      [&](Coordinator& core, absl::Time now, Effects* effects) {
        struct Visitor {
          Coordinator& core;
          const Sender& sender;
          absl::Time now;
          Effects* effects;
          absl::Status operator()(const HeartbeatEvent& e) {
            return core.Heartbeat(sender, e, now, effects);
          }
          absl::Status operator()(const OrderAnnouncement& e) {
            return core.Announce(sender, e, now, effects);
          }
          absl::Status operator()(const StepReport& e) {
            return core.ReportStep(sender, e, now, effects);
          }
          absl::Status operator()(const RankFailure& e) {
            return core.ReportFailure(sender, e, now, effects);
          }
          absl::Status operator()(const EpochPrepared& e) {
            return core.ReportPrepared(sender, e, now, effects);
          }
          absl::Status operator()(const HeldJob& e) {
            return core.ReportHeld(sender, e, now, effects);
          }
          absl::Status operator()(const SaveReport& e) {
            return core.ReportSave(sender, e, now, effects);
          }
        };
        return std::visit(Visitor{core, sender, now, effects}, event);
      },
      &journal_failed);
  // An error would end the stream, which mends no journal. The core has kept what it heard.
  return journal_failed ? absl::OkStatus() : status;
}

bool CoordinatorHost::SendCommand(const WorkerId& worker, Command command) {
  absl::MutexLock lock(&mu_);
  const auto outbox = outboxes_.find(worker);
  if (outbox == outboxes_.end()) return false;
  // Not journalled and not repeated: the session that it names ends with this process.
  outbox->second->Push(std::move(command));
  return true;
}

absl::Status CoordinatorHost::Run(Handler handler) {
  absl::MutexLock lock(&mu_);
  return RunLocked(handler);
}

absl::Status CoordinatorHost::AwaitCore(
    const std::vector<JobId>& jobs,
    absl::FunctionRef<std::optional<absl::Status>(const Coordinator&)> look,
    absl::FunctionRef<bool()> cancelled) {
  // Before the first look, so that no change after that look is missed.
  JobWaits::Wait wait(&waits_, jobs);
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (stopped_) return Stopping();
      if (std::optional<absl::Status> status = look(core_)) return *std::move(status);
    }
    if (cancelled()) return absl::CancelledError("the caller is gone");
    // Not for longer, because nobody wakes it where the caller goes.
    wait.Await(kCancelPoll);
  }
}

absl::StatusOr<JobView> CoordinatorHost::AwaitChange(const JobId& job, int64_t* seen_change,
                                                     absl::FunctionRef<bool()> cancelled) {
  // Before the first look, as in AwaitCore.
  JobWaits::Wait wait(&waits_, {job});
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (stopped_) return Stopping();
      ASSIGN_OR_RETURN(JobView view, core_.GetJob(job));
      // A job that has not changed since this process began counts as changed once, at 1.
      const int64_t changed_at = changed_at_.emplace(job, 1).first->second;
      if (changed_at > *seen_change) {
        *seen_change = changed_at;
        return view;
      }
    }
    if (cancelled()) return absl::CancelledError("the caller is gone");
    wait.Await(kCancelPoll);  // A job that only its workers have disappears without a change.
  }
}

}  // namespace tessera::coordinator
