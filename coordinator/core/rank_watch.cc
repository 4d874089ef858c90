#include "coordinator/core/rank_watch.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/job_views.h"

namespace tessera::coordinator {
namespace {

// What a text names of the ranks that wait.
constexpr size_t kMaxNamedWaits = 4;

// "rank 3", "ranks 0, 1, 2", "ranks 0, 1, ... and 5 more".
std::string RanksText(const std::vector<Rank>& ranks) {
  const size_t named = std::min(ranks.size(), RankWatch::kMaxNamed);
  const std::string more =
      named == ranks.size() ? "" : absl::StrCat(" and ", ranks.size() - named, " more");
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ",
      absl::StrJoin(ranks.begin(), ranks.begin() + named, ", ",
                    [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value()); }),
      more);
}

std::string RankOnWorker(const Job& job, Rank rank) {
  return absl::StrCat("rank ", rank.value(), " on worker ",
                      job.status.placements[rank.value()].worker.value());
}

// "unshard blocks.2 (step 12, operation 7)".
std::string WhereText(const OrderPosition& place, const EpochRuntime& runtime, const Job& job) {
  const OrderEntry* entry = runtime.order.EntryAt(place);
  std::string what = "an operation";
  if (entry != nullptr) {
    const auto& units = job.spec->model.units;
    const int64_t unit = entry->unit.value();
    const bool has_unit = unit >= 0 && unit < static_cast<int64_t>(units.size());
    what = absl::StrCat(entry->operation, has_unit ? absl::StrCat(" ", units[unit].name) : "");
  }
  return absl::StrCat(what, " (step ", place.step.value(),
                      place.pass == 0 ? "" : absl::StrCat(", pass ", place.pass), ", operation ",
                      place.sequence + 1, ")");
}

std::string WhatMissingRankDoes(const EpochRuntime& runtime, Rank rank) {
  const auto status = runtime.ranks.find(static_cast<int32_t>(rank.value()));
  if (status == runtime.ranks.end()) return "it has not reported in this epoch";
  if (!status->second.attached) return "no trainer is attached to it";
  if (status->second.doing.empty() || status->second.doing == "idle")
    return "its trainer is attached and submits no operation";
  return absl::StrCat("its trainer is attached, and it is in ", status->second.doing);
}

// "ranks 0, 1, 2 wait: ranks 0, 1 in reduce blocks.2, rank 2 in step".
std::string WaitsText(const EpochRuntime& runtime, const std::vector<Rank>& waiting) {
  std::map<std::string, std::vector<Rank>> by_what;
  for (const Rank rank : waiting) {
    const auto status = runtime.ranks.find(static_cast<int32_t>(rank.value()));
    const std::string doing = status == runtime.ranks.end() ? "" : status->second.doing;
    by_what[doing.empty() || doing == "idle" ? "idle" : "in " + doing].push_back(rank);
  }
  std::vector<std::string> texts;
  for (const auto& [what, ranks] : by_what) {
    if (texts.size() == kMaxNamedWaits) break;
    texts.push_back(by_what.size() == 1 ? what : absl::StrCat(RanksText(ranks), " ", what));
  }
  if (texts.size() < by_what.size()) texts.push_back("others elsewhere");
  return absl::StrCat(RanksText(waiting),
                      waiting.size() == 1 ? " waits: " : " wait: ", absl::StrJoin(texts, ", "));
}

std::string MissingText(const Job& job, const EpochRuntime& runtime, Rank missing,
                        absl::Duration patience) {
  std::vector<Rank> waiting, also_missing;
  const OrderPosition& place = runtime.hangs.PlaceOf(missing);
  for (size_t i = 0; i < job.status.placements.size(); ++i) {
    const Rank rank(i);
    if (place < runtime.hangs.PlaceOf(rank)) waiting.push_back(rank);
    if (rank != missing && runtime.hangs.IsMissing(rank)) also_missing.push_back(rank);
  }
  return absl::StrCat(
      RankOnWorker(job, missing), " is missing at ", WhereText(place, runtime, job), " for ",
      absl::FormatDuration(patience), "; ", WaitsText(runtime, waiting), "; ",
      also_missing.empty() ? "" : absl::StrCat("missing too: ", RanksText(also_missing), "; "),
      WhatMissingRankDoes(runtime, missing));
}

std::string SlowText(const Job& job, const StragglerWatch::Change& change) {
  const auto seconds = [](absl::Duration time) {
    return absl::StrFormat("%.3g s", absl::ToDoubleSeconds(time));
  };
  const std::string who = RankOnWorker(job, change.rank);
  if (!change.is_slow) {
    return absl::StrCat(who, " is not slow any more: it computes ", seconds(change.compute),
                        " of each ", seconds(change.step), " step, the median rank ",
                        seconds(change.median));
  }
  const std::string times =
      change.median <= absl::ZeroDuration()
          ? absl::StrCat(seconds(change.compute), " in each step, the median rank nothing")
          : absl::StrFormat("%.1f times as long as the median rank",
                            absl::FDivDuration(change.compute, change.median));
  return absl::StrCat(who, " computes ", times, ": ", seconds(change.compute - change.median),
                      " of each ", seconds(change.step), " step the others wait for it");
}

// The job's reason changes with it.
void AddEvent(EventKind kind, const JobId& id, const Job& job, Rank rank, std::string text,
              Effects* effects) {
  ClusterEvent event = EventOf(kind, id, job, std::move(text));
  event.rank = rank;
  event.worker = job.status.placements[rank.value()].worker;
  effects->events.push_back(std::move(event));
  effects->changed_jobs.insert(id);
}

void AddArrival(const JobId& id, const Job& job, Rank rank, Effects* effects) {
  AddEvent(EventKind::kRankArrived, id, job, rank,
           absl::StrCat(RankOnWorker(job, rank), " has arrived"), effects);
}

}  // namespace

void RankWatch::EndOf(const JobId& id, const Job& job, EpochRuntime* runtime, Effects* effects) {
  for (const auto& [rank, text] : runtime->missing) AddArrival(id, job, rank, effects);
  runtime->missing.clear();
  runtime->slow.clear();
}

void RankWatch::Look(absl::Time now, Effects* effects) {
  const absl::Duration patience = state_->options.hang_after;
  // What passed while the coordinator stood still is nobody's delay.
  const absl::Duration pause = now - last_look_;
  const bool has_paused = patience > absl::ZeroDuration() && pause > patience / 2;
  last_look_ = now;
  for (const auto& [id, runtime] : state_->runtimes()) {
    // First, because it is all that most jobs cost in most ticks.
    bool is_due = patience > absl::ZeroDuration() && runtime.hangs.IsDue(now);
    if (!is_due && !has_paused && !runtime.stragglers.IsWindowFull()) continue;
    const Job* job = state_->FindJob(id);
    if (job == nullptr || runtime.epoch != job->status.epoch) continue;
    if (has_paused) {
      state_->Runtime(id, *job).hangs.Postpone(pause);
      is_due = is_due && runtime.hangs.IsDue(now);
    }
    if (!IsWatched(id, *job)) continue;
    if (is_due) LookForMissing(id, *job, now, effects);
    if (runtime.stragglers.IsWindowFull()) LookForSlow(id, *job, effects);
  }
}

bool RankWatch::IsWatched(const JobId& id, const Job& job) const {
  const EpochRuntime* runtime = state_->FindRuntime(id, job);
  return job.status.state == JobState::kRunning && !job.status.completed && !job.IsFrozen() &&
         !runtime->failure.has_value() && !state_->IsBehind(id, job);
}

void RankWatch::LookForMissing(const JobId& id, const Job& job, absl::Time now, Effects* effects) {
  EpochRuntime& runtime = state_->Runtime(id, job);
  const absl::Duration patience = state_->options.hang_after;
  const HangWatch::Found found = runtime.hangs.Look(now, patience);
  for (const Rank rank : found.arrived) {
    if (runtime.missing.erase(rank) > 0) AddArrival(id, job, rank, effects);
  }
  if (found.missing.empty()) return;
  const bool has_trainer = std::any_of(runtime.ranks.begin(), runtime.ranks.end(),
                                       [](const auto& rank) { return rank.second.attached; });
  // Nobody waits. Once a trainer attaches, the others' have the whole patience.
  if (!has_trainer) return runtime.hangs.Forgive(found.missing, now);
  for (const Rank rank : found.missing) {
    if (runtime.missing.size() == kMaxNamed) break;
    std::string& text = runtime.missing[rank];
    text = MissingText(job, runtime, rank, patience);
    AddEvent(EventKind::kRankMissing, id, job, rank, text, effects);
  }
  if (!state_->options.end_hung_epochs) return;
  // Only marked here: a look has no records, so the next Tick opens the epoch.
  EpochFailure failure;
  failure.reason = runtime.missing.begin()->second;
  failure.cause = EpochCause::kMissingRank;
  runtime.failure = std::move(failure);
}

void RankWatch::LookForSlow(const JobId& id, const Job& job, Effects* effects) {
  EpochRuntime& runtime = state_->Runtime(id, job);
  for (const StragglerWatch::Change& change : runtime.stragglers.EndWindow()) {
    std::string text = SlowText(job, change);
    if (change.is_slow) {
      if (runtime.slow.size() == kMaxNamed) continue;
      runtime.slow[change.rank] = text;
    } else if (runtime.slow.erase(change.rank) == 0) {
      continue;
    }
    AddEvent(change.is_slow ? EventKind::kRankSlow : EventKind::kRankNotSlow, id, job, change.rank,
             std::move(text), effects);
  }
}

}  // namespace tessera::coordinator
