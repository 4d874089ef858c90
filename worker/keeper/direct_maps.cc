#include "worker/keeper/direct_maps.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/live_plan.h"
#include "worker/keeper/state_map.h"

namespace tessera {

absl::Status DirectMap::Prepare(const std::shared_ptr<HostedJob>& job,
                                const v1::LiveStateQuery& query) {
  job_ = job;
  const JobRegions& held = job->regions();
  // Holding the layout keeps the job alive.
  const std::shared_ptr<const ModelLayout> layout(job, &held.layout());
  ASSIGN_OR_RETURN(const LivePlan plan, PlanLiveRead(held.config(), layout, query));
  RETURN_IF_ERROR(CheckLiesAsAskedFor(plan));
  MapRequest request;
  request.parameters = plan.parameters;
  request.moments = plan.moments;
  request.buffers = plan.buffers;
  ASSIGN_OR_RETURN(PlacedState placed, PlaceState(held, request));
  answer_.set_generation(job->generation());
  // A client compares it between workers. One that lost its coordinator is in an earlier epoch, and
  // its memory may not be the job's any more (docs/adr/0074).
  answer_.set_epoch(held.group()->prepared_epoch.load());
  answer_.set_first_rank(held.local().first());
  answer_.set_size_bytes(plan.TotalBytes());
  answer_.mutable_tensors()->Reserve(static_cast<int>(plan.tensors.size()));
  for (size_t tensor = 0; tensor < plan.tensors.size(); ++tensor)
    *answer_.add_tensors() = plan.InfoOf(tensor);
  *answer_.mutable_given() = std::move(placed.places);
  regions_ = std::move(placed.regions);
  return absl::OkStatus();
}

absl::Status DirectMap::CheckNew() const {
  // A weak pointer: a client that maps does not keep a deleted job's memory booked.
  const std::shared_ptr<HostedJob> held = find_(job_id_);
  if (held != nullptr && held == job_.lock()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "job '", job_id_,
      held == nullptr ? "' is gone from this worker: it was deleted, is over or is lost"
                      : "' has begun again, with other memory"));
}

absl::Status DirectMaps::Enter(const std::string& job_id) {
  absl::MutexLock lock(&mu_);
  int& count = maps_[job_id];
  // Each client keeps a connection and a thread of this worker.
  if (count < kMaxMapsOfAJob) {
    ++count;
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(count, " clients of this worker map job '", job_id, "' already"));
}

void DirectMaps::Leave(const std::string& job_id) {
  absl::MutexLock lock(&mu_);
  const auto it = maps_.find(job_id);
  if (--it->second == 0) maps_.erase(it);
}

bool DirectMaps::IsQuick(const v1::LiveStateQuery& query) const {
  const std::shared_ptr<HostedJob> job = find_(query.job_id());
  // The refusal of an unknown job is quick.
  if (job == nullptr) return true;
  const JobRegions& held = job->regions();
  const size_t num_buffers = held.layout().buffers.size();
  return held.update_counts().num_parameters() + num_buffers <= kQuickTensors;
}

absl::StatusOr<std::unique_ptr<DirectMap>> DirectMaps::Open(const v1::LiveStateQuery& query) {
  const std::shared_ptr<HostedJob> job = find_(query.job_id());
  if (job == nullptr)
    return absl::NotFoundError(absl::StrCat("this worker has no job '", query.job_id(), "'"));
  RETURN_IF_ERROR(Enter(query.job_id()));
  // Before what may fail: its destructor gives the place back.
  auto map = std::make_unique<DirectMap>(query.job_id(), find_,
                                         [this, id = query.job_id()] { Leave(id); });
  RETURN_IF_ERROR(map->Prepare(job, query));
  return map;
}

}  // namespace tessera
