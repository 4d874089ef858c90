#include "coordinator/core/orphan_adopter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/same_secret.h"
#include "base/status_macros.h"
#include "coordinator/core/job_spec.h"

namespace tessera::coordinator {
namespace {

// Whether the job goes on with what the worker holds: others may have taken its place since, and
// may have begun again where no step was known.
bool GoesOn(const WorkerId& worker, const HeldJob& held, const std::vector<RankPlacement>& places) {
  return std::any_of(places.begin(), places.end(), [&](const RankPlacement& place) {
    return place.worker == worker && place.since <= held.epoch;
  });
}

}  // namespace

void OrphanAdopter::HearOfHeldJob(const Sender& from, const JobProgress& job, absl::Time now,
                                  Effects* effects) {
  // The obstacle to taking it over may be gone by now.
  if (!state_->orphans.Hear(from.worker, job))
    return Adopt({job.job, job.generation}, now, effects);
  effects->commands.push_back({from.worker, DescribeJob{job.job, job.generation}});
}

absl::Status OrphanAdopter::ReportHeld(const Sender& sender, const HeldJob& event, absl::Time now,
                                       Effects* effects) {
  if (event.places.size() != static_cast<size_t>(event.spec->config.world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("job '", event.job.value(), "' is held with ", event.places.size(),
                     " placements; its world size is ", event.spec->config.world_size));
  }
  // A worker's report is untrusted: no epoch could begin with two ranks on one device.
  std::set<DeviceId> devices;
  for (const HeldJob::Place& place : event.places) {
    if (devices.emplace(place.worker, place.device).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("job '", event.job.value(), "' is held with two ranks on device ",
                     place.device, " of worker '", place.worker.value(), "'"));
  }
  const Job* known = state_->FindJob(event.job);
  // The journal decides what the job is. A report adds only how far it has come.
  if (known != nullptr && known->generation == event.generation) {
    RETURN_IF_ERROR(CompareJobSpecs(*known->spec, *event.spec));
    // Only workers that have had ranks of the job got its key.
    if (!IsSameSecret(known->attach_key, event.attach_key)) {
      return absl::PermissionDeniedError(
          absl::StrCat("worker '", sender.worker.value(), "' describes job '", event.job.value(),
                       "' without the job's key: it never had a rank of it"));
    }
  }
  state_->orphans.Describe(sender.worker, event);
  Adopt({event.job, event.generation}, now, effects);
  if (state_->FindJob(event.job) != nullptr || ViewOrphan(event.job).has_value())
    effects->changed_jobs.insert(event.job);
  return absl::OkStatus();
}

std::optional<std::vector<RankPlacement>> OrphanAdopter::PlacesOf(const HeldJob& held,
                                                                  const Orphans::Holders& holders,
                                                                  std::string* why_not) const {
  if (!Orphans::Missing(holders).empty()) {
    *why_not = Orphans::DescribeHolders(holders);
    return std::nullopt;
  }
  // While the job was unknown, its devices may have been given to another one.
  const std::set<DeviceId> claimed = state_->durable().ClaimedByOthers(held.job).devices;
  std::vector<RankPlacement> places;
  for (const HeldJob::Place& place : held.places) {
    const Member* member = state_->members().Find(place.worker);
    if (member == nullptr || member->lost || place.device < 0 ||
        place.device >= member->num_devices) {
      *why_not = absl::StrCat("worker '", place.worker.value(), "' has no device ", place.device);
      return std::nullopt;
    }
    if (claimed.count({place.worker, place.device}) > 0) {
      *why_not = absl::StrCat("device ", place.device, " of worker '", place.worker.value(),
                              "' has another job");
      return std::nullopt;
    }
    places.push_back({place.worker, place.device, member->incarnation, place.since});
  }
  return places;
}

void OrphanAdopter::Adopt(const Orphans::Key& key, absl::Time now, Effects* effects) {
  const auto& [id, generation] = key;
  const Orphans::Holders holders = state_->BelievedHolders(key);
  const HeldJob* held = Orphans::Latest(holders);
  const Job* known = state_->FindJob(id);
  // A deleted generation is never taken over, even if its worker still holds it.
  if (held == nullptr || generation <= state_->durable().deleted().Newest(id)) return;
  if (known != nullptr && (known->generation != generation || !state_->IsBehind(id, *known)))
    return;
  std::string why_not;
  auto places = PlacesOf(*held, holders, &why_not);
  if (!places.has_value()) return;
  JobStatus status;
  status.epoch = held->epoch;
  status.placements = *std::move(places);
  Step decided = known == nullptr ? Step(0) : known->committed_step;
  for (const auto& [worker, holder] : holders) {
    if (!holder.described.has_value()) continue;
    // The next epoch has to be later than any that a worker has seen.
    status.epoch = std::max(status.epoch, holder.epoch);
    if (!GoesOn(worker, *holder.described, status.placements)) continue;
    status.bound |= holder.described->has_begun;
    decided = std::max(decided, holder.described->decided_step);
  }
  status.reason = absl::StrCat("taken over at step ", decided.value(), " from ",
                               WorkersOf(status.placements).size(),
                               " workers that hold it, since the journal did not know it");
  if (state_->unreadable().count(id) > 0) {
    // The rows that cannot be read go first, because the records below have the same keys.
    state_->ReplaceUnreadable(id);
    state_->Put(JobGoneRecord{id}, effects);
  }
  // A job that is only behind keeps the spec and the owner that the journal has.
  if (known == nullptr)
    state_->Put(
        JobSpecRecord{id, held->spec, generation, Orphans::OwnerOf(holders), held->attach_key},
        effects);
  state_->Put(JobStatusRecord{id, std::move(status)}, effects);
  state_->Put(JobStepRecord{id, decided}, effects);
  // The orphan is not a record, so Rollback alone would not bring it back.
  state_->OnRollback([state = state_, key = key, known_by = *state_->orphans.Find(key)] {
    state->orphans.PutBack(key, known_by);  // The next heartbeat tries again.
  });
  state_->orphans.Forget(key);
  effects->changed_jobs.insert(id);
  // After Forget, because no epoch begins while orphans are ahead of the job.
  epochs_->Advance(id, now, effects);
}

std::optional<JobView> OrphanAdopter::ViewOrphan(const JobId& id) const {
  const auto unreadable = state_->unreadable().find(id);
  std::optional<Orphans::Key> key = state_->orphans.Newest(id);
  // A deleted job only waits for its worker to drop it, so it is not shown.
  if (key.has_value() && key->second <= state_->durable().deleted().Newest(id)) key.reset();
  const Orphans::Holders* holders = key.has_value() ? state_->orphans.Find(*key) : nullptr;
  if (holders == nullptr && unreadable == state_->unreadable().end()) return std::nullopt;
  // An empty spec instead of null: code that shows a job need not check for it.
  static const JobSpecPtr* const kNone = new JobSpecPtr(std::make_shared<JobSpec>());
  JobView view;
  view.id = id;
  view.spec = *kNone;
  view.status.state = JobState::kOrphaned;
  if (unreadable != state_->unreadable().end()) view.status.reason = unreadable->second;
  if (holders == nullptr) return view;
  view.generation = key->second;
  if (!view.status.reason.empty()) view.status.reason += "; ";
  const HeldJob* held = Orphans::Latest(*holders);
  if (held == nullptr) {
    view.status.reason += Orphans::DescribeHolders(*holders);
    return view;
  }
  view.spec = held->spec;
  view.owner = Orphans::OwnerOf(*holders);
  view.committed_step = held->decided_step;
  view.status.epoch = held->epoch;
  for (const HeldJob::Place& place : held->places)
    view.status.placements.push_back({place.worker, place.device, Incarnation()});
  std::string why_not;
  const bool can_go_on = PlacesOf(*held, *holders, &why_not).has_value();
  view.status.reason += can_go_on ? Orphans::DescribeHolders(*holders) : why_not;
  return view;
}

}  // namespace tessera::coordinator
