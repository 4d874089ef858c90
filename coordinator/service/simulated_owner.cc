#include "coordinator/service/simulated_owner.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/service/codec.h"
#include "coordinator/service/save_codec.h"
#include "coordinator/service/simulated_held_job.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"

namespace tessera::coordinator {

v1::CreateJobRequest SimulatedJobRequest(const std::string& id, int32_t world_size,
                                         int32_t group_size) {
  JobConfig config;
  config.world_size = world_size;
  config.shard_group_size = group_size;
  if (group_size > 0) config.strategy = Strategy::kHybridShard;
  ModelSpec model;
  for (const char* name : {"root", "u1", "u2", "u3", "u4"}) {
    model.units.push_back(
        {name, {TensorSpec{absl::StrCat(name, ".w"), {8}, DType::kFp32, true, ""}}});
  }
  v1::CreateJobRequest request;
  request.set_job_id(id);
  *request.mutable_model() = EncodeModel(model);
  *request.mutable_config() = EncodeJobConfig(config);
  return request;
}

SimulatedOwner::SimulatedOwner(v1::CreateJobRequest job, SimulatedDice* dice, SimulatedCalls* calls,
                               SimulatedCoordinator* coordinator,
                               std::function<SimulatedTruth*(const JobId&, Generation)> find_truth)
    : job_(std::move(job)),
      dice_(dice),
      calls_(calls),
      coordinator_(coordinator),
      find_truth_(std::move(find_truth)) {}

void SimulatedOwner::Act(bool at_will) {
  if (request_ == Request::kNothing && at_will && dice_->OneIn(8)) ActOnSaves();
  if (has_gone_back_) LookAfterGoingBack();
  if (request_ == Request::kNothing) Look(at_will);
  if (request_ == Request::kNothing) return;
  if (waits_ && dice_->OneIn(10)) waits_ = false;  // Its deadline has passed.
  if (!waits_) Call();
}

void SimulatedOwner::Look(bool at_will) {
  const absl::StatusOr<JobView> view = coordinator_->core().GetJob(id());
  ASSERT_OK(view) << "the job is gone, and nobody has deleted it";
  EXPECT_EQ(view->generation, generation_);
  if (view->status.state != JobState::kLost && !(at_will && dice_->OneIn(100))) return;
  request_ = Request::kDelete;
  ++num_requests_;
}

void SimulatedOwner::LookAfterGoingBack() {
  const absl::StatusOr<JobView> view = coordinator_->core().GetJob(id());
  if (!view.ok()) {
    if (request_ == Request::kCreate) return;
    generation_ = Generation();
    request_ = Request::kCreate;
    ++num_requests_;
    return;
  }
  if (request_ == Request::kDelete) return;
  const bool is_known = view->generation != Generation();
  const bool is_another = request_ == Request::kNothing && view->generation != generation_;
  // What a part of is gone never goes on, nor what not all of its workers have heard of; what a
  // worker holds of another one is deleted first.
  const bool is_orphan = is_known && (view->status.state == JobState::kOrphaned ||
                                      absl::StrContains(view->status.reason, "an older epoch"));
  const bool is_partial = is_orphan && (find_truth_(id(), view->generation)->has_lost_memory() ||
                                        find_truth_(id(), view->generation)->decided() == 0);
  const bool is_in_the_way = absl::StrContains(view->status.reason, kHoldsAnother);
  if (!is_another && !((is_partial || is_in_the_way) && dice_->OneIn(20))) return;
  generation_ = view->generation;
  request_ = Request::kDelete;
  ++num_requests_;
}

void SimulatedOwner::Call() {
  waits_ = true;
  ++num_calls_;
  if (request_ == Request::kCreate) return Create();
  if (generation_ != Generation()) find_truth_(id(), generation_)->Delete();
  Delete();
}

void SimulatedOwner::Create() {
  job_.set_request_id(absl::StrCat(job_.job_id(), "/", num_requests_));
  calls_->Send([this, call = num_calls_, request = job_] {
    absl::StatusOr<CreateJobEvent> event = Decode(request);
    ASSERT_OK(event);
    absl::StatusOr<JobView> view = absl::UnknownError("not called");
    const absl::Status status =
        coordinator_->Run([&](Coordinator& core, absl::Time now, Effects* effects) {
          view = core.CreateJob(*event, now, effects);
          return view.status();
        });
    if (!waits_ || call != num_calls_ || calls_->LosesReply()) return;
    waits_ = false;
    if (absl::IsUnavailable(status)) return;
    if (has_gone_back_ && absl::IsNotFound(status)) {
      ++num_requests_;
      return;
    }
    ASSERT_OK(status);
    generation_ = view->generation;
    request_ = Request::kNothing;
  });
}

void SimulatedOwner::Delete() {
  v1::DeleteJobRequest request;
  request.set_request_id(absl::StrCat(job_.job_id(), "/", num_requests_));
  request.set_job_id(job_.job_id());
  calls_->Send([this, call = num_calls_, request] {
    absl::StatusOr<DeleteJobEvent> event = Decode(request);
    ASSERT_OK(event);
    // A call names no generation: meanwhile another one may have been taken over.
    const absl::StatusOr<JobView> view = coordinator_->core().GetJob(id());
    if (has_gone_back_ && view.ok() && view->generation != Generation())
      find_truth_(id(), view->generation)->Delete();
    const absl::Status status =
        coordinator_->Run([&](Coordinator& core, absl::Time now, Effects* effects) {
          return core.DeleteJob(*event, now, effects);
        });
    if (!waits_ || call != num_calls_ || calls_->LosesReply()) return;
    waits_ = false;
    if (absl::IsUnavailable(status)) return;
    ASSERT_TRUE(status.ok() || has_gone_back_) << status;
    generation_ = Generation();
    request_ = Request::kCreate;
    ++num_requests_;
  });
}

bool SimulatedOwner::HasPendingSaves() const {
  const absl::StatusOr<std::vector<SaveView>> saves = coordinator_->core().ListSaves(id());
  return saves.ok() && !saves->empty() && saves->front().save.state != SaveState::kEnded;
}

void SimulatedOwner::ActOnSaves() {
  const absl::StatusOr<std::vector<SaveView>> saves = coordinator_->core().ListSaves(id());
  if (!saves.ok()) return;
  if (!saves->empty() && dice_->OneIn(4))
    return CancelSave((*saves)[dice_->Roll(saves->size())].save.number);
  if (saves->size() > 3 && (*saves)[3].save.state != SaveState::kEnded) return;
  v1::RequestSaveRequest request;
  request.set_request_id(absl::StrCat(job_.job_id(), "/save/", ++num_saves_));
  request.set_job_id(job_.job_id());
  request.mutable_spec()->set_path(absl::StrCat("/saves/", dice_->Roll(4)));
  if (dice_->OneIn(2)) request.set_expires_in_ms(1 + dice_->Roll(20'000));
  RequestSave(request);
  if (dice_->OneIn(4)) RequestSave(request);  // Its reply was lost.
}

void SimulatedOwner::RequestSave(v1::RequestSaveRequest request) {
  calls_->Send([this, request = std::move(request)] {
    absl::StatusOr<RequestSaveEvent> event = Decode(request);
    ASSERT_OK(event);
    const absl::Status status =
        coordinator_->Run([&](Coordinator& core, absl::Time now, Effects* effects) {
          return core.RequestSave(*event, now, effects).status();
        });
    // There is no job, or it is lost.
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status) || absl::IsNotFound(status) ||
                absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status))
        << status;
  });
}

void SimulatedOwner::CancelSave(int64_t number) {
  calls_->Send([this, number] {
    const absl::Status status =
        coordinator_->Run([&](Coordinator& core, absl::Time now, Effects* effects) {
          return core.CancelSave(id(), number, now, effects).status();
        });
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status) || absl::IsNotFound(status)) << status;
  });
}

}  // namespace tessera::coordinator
