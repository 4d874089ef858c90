#include "coordinator/core/job_saves.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "coordinator/core/job_views.h"

namespace tessera::coordinator {
namespace {

// A requested save is tried in at most this many epochs.
constexpr int kMaxSaveTries = 3;
// How many ranks a message names.
constexpr size_t kMaxNamedRanks = 8;
// Ends that wait to be journalled. Ends beyond this are dropped.
constexpr size_t kMaxHeardSaves = 1024;

absl::Status NoSuchSave(const JobId& job, int64_t number) {
  return absl::NotFoundError(
      absl::StrCat("job '", job.value(), "' has no save ", number, ", or it is no longer kept"));
}

}  // namespace

std::string JobSaves::WhySaveWaits(const JobId& id, const Job& job, const Save& save) const {
  const Save* head = job.saves().Head();
  if (head != nullptr && head->number != save.number)
    return absl::StrCat("save ", head->number, ", which is before it");
  if (job.status.state != JobState::kRunning)
    return absl::StrCat("the job, which is ", Name(job.status.state), ": ",
                        StateReason(*state_, id, job));
  const EpochRuntime* runtime = state_->FindRuntime(id, job);
  std::vector<int32_t> alone;
  for (int32_t rank = 0; rank < job.spec->config.world_size; ++rank) {
    if (runtime == nullptr || runtime->ranks.count(rank) == 0)
      return absl::StrCat("a report of rank ", rank, " in epoch ", job.status.epoch.value());
    if (!runtime->ranks.at(rank).attached) alone.push_back(rank);
  }
  if (alone.empty()) return "the next step";
  const bool all_named = alone.size() <= kMaxNamedRanks;
  const std::string of = alone.size() == 1 ? "rank " : "ranks ";
  if (!all_named) alone.resize(kMaxNamedRanks);
  return absl::StrCat("trainers: none is attached to ", of, absl::StrJoin(alone, ", "),
                      all_named ? "" : " and others");
}

SaveView JobSaves::ViewSave(const JobId& id, const Job& job, const Save& save) const {
  SaveView view{save, 0, 0, ""};
  if (save.state == SaveState::kWaiting) view.waits_for = WhySaveWaits(id, job, save);
  const EpochRuntime* runtime = state_->FindRuntime(id, job);
  if (save.state != SaveState::kSaving || runtime == nullptr) return view;
  for (const auto& [rank, progress] : runtime->saving) {
    if (progress.number != save.number) continue;
    view.written_bytes += progress.written_bytes;
    view.all_bytes += progress.all_bytes;
  }
  return view;
}

absl::StatusOr<SaveView> JobSaves::GetSave(const JobId& job, int64_t number) const {
  const Job* found = state_->FindJob(job);
  if (found == nullptr) return NoSuchJob(job);
  const Save* save = found->saves().Find(number);
  if (save == nullptr) return NoSuchSave(job, number);
  return ViewSave(job, *found, *save);
}

absl::StatusOr<std::vector<SaveView>> JobSaves::ListSaves(const JobId& job) const {
  const Job* found = state_->FindJob(job);
  if (found == nullptr) return NoSuchJob(job);
  std::vector<SaveView> views;
  for (const int64_t number : found->saves().pending())
    views.push_back(ViewSave(job, *found, *found->saves().Find(number)));
  const std::vector<const Save*> ended = found->saves().Ended();
  for (auto save = ended.rbegin(); save != ended.rend(); ++save)
    views.push_back(ViewSave(job, *found, **save));
  return views;
}

void JobSaves::SendRequest(const JobId& id, const std::set<WorkerId>& workers,
                           Effects* effects) const {
  const Job& job = *state_->FindJob(id);
  // Workers have heard of no request of a job that never had a save.
  if (job.save_log == nullptr || job.status.state != JobState::kRunning) return;
  WantSave want{id, job.generation, 0, {}, false};
  // Number 0 withdraws the request that workers may have heard of.
  if (const Save* head = job.saves().Head(); head != nullptr) {
    want.number = head->number;
    want.spec = head->spec;
    want.cancelled = head->cancelled;
  }
  for (const WorkerId& worker : workers) effects->commands.push_back({worker, want});
}

absl::StatusOr<SaveView> JobSaves::RequestSave(const RequestSaveEvent& event, absl::Time now,
                                               Effects* effects) {
  const Job* job = state_->FindJob(event.job);
  if (job == nullptr) return NoSuchJob(event.job);
  // A retry is answered even if the job is over by now.
  if (const Save* known = job->saves().FindRequest(event.request_id); known != nullptr) {
    if (known->spec == event.spec) return ViewSave(event.job, *job, *known);
    return absl::AlreadyExistsError(absl::StrCat("request id '", event.request_id,
                                                 "' was used for save ", known->number, " to '",
                                                 known->spec.path, "'"));
  }
  RETURN_IF_ERROR(CheckNotOver(event.job, job->status));
  if (job->saves().pending().size() >= SaveLog::kMaxPending) {
    return absl::ResourceExhaustedError(
        absl::StrCat("job '", event.job.value(), "': ", SaveLog::kMaxPending,
                     " saves wait already; save ", job->saves().Head()->number, " waits for ",
                     WhySaveWaits(event.job, *job, *job->saves().Head())));
  }
  Save save;
  save.number = job->saves().NextNumber(state_->durable().cluster().first_save_number);
  save.request_id = event.request_id;
  save.spec = event.spec;
  save.requested_at = now;
  save.expires_at = now + event.expires_in;
  state_->Put(SaveRecord{event.job, save}, effects);
  // Tells workers the oldest request that has not ended, which need not be this one.
  SendRequest(event.job, WorkersOf(job->status.placements), effects);
  effects->changed_jobs.insert(event.job);
  return ViewSave(event.job, *job, save);
}

absl::StatusOr<SaveView> JobSaves::CancelSave(const JobId& id, int64_t number, absl::Time now,
                                              Effects* effects) {
  const Job* job = state_->FindJob(id);
  if (job == nullptr) return NoSuchJob(id);
  const Save* found = job->saves().Find(number);
  if (found == nullptr) return NoSuchSave(id, number);
  Save save = *found;
  if (NextState(save.state, SaveEvent::kWithdrawn).has_value()) {
    EndSave(id, std::move(save), absl::CancelledError("it was withdrawn before a step took it"),
            now, effects);
  } else if (save.state == SaveState::kSaving && !save.cancelled) {
    save.cancelled = true;
    state_->Put(SaveRecord{id, std::move(save)}, effects);
    SendRequest(id, WorkersOf(job->status.placements), effects);
    effects->changed_jobs.insert(id);
  }
  return GetSave(id, number);
}

void JobSaves::EndSave(const JobId& id, Save save, const absl::Status& outcome, absl::Time now,
                       Effects* effects) {
  const Job& job = *state_->FindJob(id);
  // Asked first: once the save has ended, another one is the first of those that wait.
  const bool was_head = job.saves().Head() != nullptr && job.saves().Head()->number == save.number;
  // Before the save ends, because Surplus leaves room for one more.
  for (const int64_t number : job.saves().Surplus())
    state_->Put(SaveGoneRecord{id, number}, effects);
  save.state = SaveState::kEnded;
  save.ended_at = now;
  save.ended_sequence = job.saves().NextEndedSequence();
  save.outcome = outcome;
  save.fate = outcome.ok() ? SaveFate::kKept : SaveFate::kNone;
  state_->Put(SaveRecord{id, save}, effects);
  ClusterEvent event =
      EventOf(outcome.ok() ? EventKind::kSaveDone : EventKind::kSaveFailed, id, job,
              absl::StrCat("save ", save.number,
                           save.step > Step(0) ? absl::StrCat(" of step ", save.step.value()) : "",
                           " to '", save.spec.path, "' ",
                           outcome.ok() ? std::string("is done")
                                        : absl::StrCat("failed: ", outcome.ToString())));
  if (absl::IsCancelled(outcome)) event.severity = EventSeverity::kInfo;  // Somebody asked for it.
  effects->events.push_back(std::move(event));
  if (outcome.ok()) {
    for (Save& other : job.saves().Outdated(save, {}))
      state_->Put(SaveRecord{id, std::move(other)}, effects);
  }
  // Only one request of a job is active at a time, so the next one is announced now.
  if (was_head) SendRequest(id, WorkersOf(job.status.placements), effects);
  effects->changed_jobs.insert(id);
}

absl::Status JobSaves::ReportSave(const Sender& sender, const SaveReport& event, absl::Time now,
                                  Effects* effects) {
  const Job* job = state_->FindJob(event.job);
  if (job == nullptr || job->generation != event.generation) return absl::OkStatus();
  const auto& placements = job->status.placements;
  if (event.rank.value() < 0 || event.rank.value() >= static_cast<int64_t>(placements.size()) ||
      placements[event.rank.value()].worker != sender.worker) {
    return absl::OkStatus();  // The worker does not hold this rank any more.
  }
  // An end also counts if its epoch is over, because the checkpoint may have been published.
  if (event.phase == SaveReport::Phase::kEnded) {
    // Kept until it is journalled: the worker repeats it only when it connects again.
    if (heard_saves_.size() < kMaxHeardSaves) heard_saves_.push_back(event);
    NoteHeardSaves(now, effects);
    return absl::OkStatus();
  }
  // A begin of an older epoch would mark a try as begun that EndSaveTry has ended already.
  if (event.epoch != job->status.epoch || job->status.state != JobState::kRunning)
    return absl::OkStatus();
  state_->Runtime(event.job, *job).saving[event.rank.value()] = {event.number, event.written_bytes,
                                                                 event.all_bytes};
  const Save* head = job->saves().Head();
  // The first rank that begins moves the request on. The others change nothing.
  if (head == nullptr || head->number != event.number || head->state != SaveState::kWaiting)
    return absl::OkStatus();
  Save save = *head;
  save.state = *NextState(save.state, SaveEvent::kBegun);
  save.step = event.step;
  state_->Put(SaveRecord{event.job, std::move(save)}, effects);
  effects->changed_jobs.insert(event.job);
  return absl::OkStatus();
}

void JobSaves::Accept() {
  heard_saves_.erase(heard_saves_.begin(), heard_saves_.begin() + noted_saves_);
  noted_saves_ = 0;
}

void JobSaves::NoteHeardSaves(absl::Time now, Effects* effects) {
  for (; noted_saves_ < heard_saves_.size(); ++noted_saves_)
    NoteSaveEnd(heard_saves_[noted_saves_], now, effects);
}

void JobSaves::NoteSaveEnd(const SaveReport& report, absl::Time now, Effects* effects) {
  const Job* job = state_->FindJob(report.job);
  if (job == nullptr || job->generation != report.generation) return;
  const Save* known = job->saves().FindReported(report.epoch, report.ordinal);
  // One rank knows how the save ended; another one knew only that its epoch was over.
  const bool knows_more =
      known != nullptr && absl::IsAborted(known->outcome) && !absl::IsAborted(report.outcome);
  if (known == nullptr || knows_more) {
    Save save;
    if (knows_more) {
      save = *known;
    } else if (report.number != 0) {
      const Save* wanted = job->saves().Find(report.number);
      // A save that ended with its epoch is tried again.
      if (wanted == nullptr || absl::IsAborted(report.outcome)) return;
      // It was withdrawn or given up, and was saved nevertheless.
      const bool corrects = wanted->ordinal == 0 && report.outcome.ok();
      if (wanted->state == SaveState::kEnded && !corrects) return;
      save = *wanted;
    } else {
      save.number = job->saves().NextNumber(state_->durable().cluster().first_save_number);
      save.spec = report.spec;
    }
    save.step = report.step;
    save.epoch = report.epoch;
    save.ordinal = report.ordinal;
    save.took = report.took;
    save.size_bytes = report.size_bytes;
    EndSave(report.job, std::move(save), report.outcome, now, effects);
    // EndSave may have copied the log, so the old pointer is void.
    known = job->saves().FindReported(report.epoch, report.ordinal);
  }
  if (report.removed.empty()) return;
  for (Save& other : job->saves().Outdated(*known, report.removed))
    state_->Put(SaveRecord{report.job, std::move(other)}, effects);
  effects->changed_jobs.insert(report.job);
}

void JobSaves::EndSaveTry(const JobId& id, const std::string& reason, absl::Time now,
                          Effects* effects) {
  const Save* head = state_->FindJob(id)->saves().Head();
  if (head == nullptr || head->state != SaveState::kSaving) return;
  Save save = *head;
  ++save.tries;
  save.last_failure = reason;
  // The requester does not want another try.
  if (save.cancelled) {
    return EndSave(id, std::move(save),
                   absl::CancelledError("it was cancelled, and a process died during it"), now,
                   effects);
  }
  if (save.tries >= kMaxSaveTries) {
    const absl::Status outcome = absl::AbortedError(
        absl::StrCat("given up after ", save.tries, " tries; the last one: ", reason));
    return EndSave(id, std::move(save), outcome, now, effects);
  }
  save.state = *NextState(save.state, SaveEvent::kEpochOver);
  state_->Put(SaveRecord{id, std::move(save)}, effects);
}

void JobSaves::EndPendingSaves(const JobId& id, const absl::Status& outcome, absl::Time now,
                               Effects* effects) {
  // A copy, because EndSave removes from the set.
  const std::set<int64_t> pending = state_->FindJob(id)->saves().pending();
  for (const int64_t number : pending)
    EndSave(id, *state_->FindJob(id)->saves().Find(number), outcome, now, effects);
}

void JobSaves::WithdrawExpiredSaves(absl::Time now, Effects* effects) {
  // Collected first, because EndSave changes the sets that are iterated.
  std::vector<std::pair<JobId, int64_t>> expired;
  for (const auto& [id, job] : state_->jobs()) {
    for (const int64_t number : job.saves().pending()) {
      const Save& save = *job.saves().Find(number);
      if (now >= save.expires_at && NextState(save.state, SaveEvent::kWithdrawn).has_value())
        expired.emplace_back(id, number);
    }
  }
  for (const auto& [id, number] : expired) {
    const Job& job = *state_->FindJob(id);
    Save save = *job.saves().Find(number);
    const absl::Status outcome = absl::DeadlineExceededError(
        absl::StrCat("no step took it in time; it waited for ", WhySaveWaits(id, job, save)));
    EndSave(id, std::move(save), outcome, now, effects);
  }
}

}  // namespace tessera::coordinator
