#include "worker/keeper/direct_maps.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/live_plan.h"
#include "worker/keeper/state_map.h"

namespace tessera {
namespace {

// What the query requests of a job that is entirely here; and the regions that contain it.
absl::StatusOr<v1::LiveMapAnswer> Answer(const std::shared_ptr<HostedJob>& job,
                                         const v1::LiveStateQuery& query,
                                         std::vector<UniqueFd>* regions) {
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
  const std::vector<int> source_of_rank(held.local().count(), 0);
  ASSIGN_OR_RETURN(std::vector<v1::LiveTensorInfo> tensors, InfosWithExtents(plan, source_of_rank));
  v1::LiveMapAnswer answer;
  answer.set_generation(job->generation());
  answer.set_size_bytes(plan.TotalBytes());
  answer.mutable_tensors()->Reserve(static_cast<int>(tensors.size()));
  for (v1::LiveTensorInfo& tensor : tensors) *answer.add_tensors() = std::move(tensor);
  *answer.mutable_given() = std::move(placed.places);
  *regions = std::move(placed.regions);
  return answer;
}

}  // namespace

DirectMap::~DirectMap() { maps_->Leave(job_id_); }

absl::Status DirectMap::CheckNew() const {
  // A weak pointer: a client that maps does not keep a deleted job's memory booked.
  const std::shared_ptr<HostedJob> held = maps_->find_(job_id_);
  if (held != nullptr && held == job_.lock()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "job '", job_id_,
      held == nullptr ? "' is gone from this worker: it was deleted, is over or is lost"
                      : "' has begun again, with other memory"));
}

absl::Status DirectMaps::Enter(const std::string& job_id) {
  absl::MutexLock lock(&mu_);
  int& count = maps_[job_id];
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
  if (job->local().spans_workers()) {
    return absl::FailedPreconditionError(absl::StrCat("other workers have ranks of job '",
                                                      query.job_id(),
                                                      "': the coordinator lets it be mapped"));
  }
  RETURN_IF_ERROR(Enter(query.job_id()));
  // Before what may fail: its destructor gives the place back.
  std::unique_ptr<DirectMap> map(new DirectMap(this, query.job_id()));
  map->job_ = job;
  ASSIGN_OR_RETURN(map->answer_, Answer(job, query, &map->regions_));
  return map;
}

}  // namespace tessera
