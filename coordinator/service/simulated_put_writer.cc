#include "coordinator/service/simulated_put_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_spec.h"

namespace tessera::coordinator {
namespace {

// Twice the timeout of collectives, and a minute.
constexpr absl::Duration kPatience = absl::Minutes(2);

}  // namespace

SimulatedPutWriter::SimulatedPutWriter(uint64_t put, const JobView& view, SimulatedTruth* truth,
                                       SimulatedDice* dice, SimulatedCoordinator* coordinator)
    : put_(put),
      truth_(truth),
      dice_(dice),
      coordinator_(coordinator),
      life_(coordinator->num_restarts()),
      has_replicas_(EachWorkerHasAll(*view.spec, view.status.placements)),
      deadline_(Now() + absl::Minutes(1)) {
  for (const RankPlacement& placement : view.status.placements) {
    if (!lines_.empty() && lines_.back()->worker == placement.worker) continue;
    lines_.push_back(std::make_shared<SimulatedPutLine>());
    lines_.back()->worker = placement.worker;
    lines_.back()->session = absl::StrCat("put ", put, "/", lines_.size());
    v1::PutCommand stage, seal;
    stage.mutable_stage()->set_put(put);
    seal.mutable_seal();
    lines_.back()->down = {stage, seal};
  }
}

SimulatedPutWriter::~SimulatedPutWriter() {
  for (const SimulatedPutLinePtr& line : lines_) line->coordinator_left = true;
}

void SimulatedPutWriter::Cut() {
  SimulatedPutLine& line = *lines_[dice_->Roll(lines_.size())];
  line.up.resize(dice_->Roll(line.up.size() + 1));
  line.down.resize(dice_->Roll(line.down.size() + 1));
  line.worker_left = line.coordinator_left = true;
}

SimulatedPutLinePtr SimulatedPutWriter::FindLine(const std::string& session) const {
  for (const SimulatedPutLinePtr& line : lines_) {
    if (line->session == session) return line;
  }
  return nullptr;
}

bool SimulatedPutWriter::IsGone() const {
  if (life_ != coordinator_->num_restarts()) return true;
  const absl::StatusOr<JobView> view = coordinator_->core().GetJob(job());
  return !view.ok() || view->generation != truth_->generation() || IsOver(view->status.state);
}

bool SimulatedPutWriter::Work() {
  if (IsGone()) return false;
  if (!has_begun_) return Begin();
  return offered_ == nullptr ? Stage() : Follow();
}

bool SimulatedPutWriter::Begin() {
  has_begun_ = true;
  return std::all_of(lines_.begin(), lines_.end(), [&](const SimulatedPutLinePtr& line) {
    return coordinator_->Send(line->worker, StagePut{job(), truth_->generation(), line->session});
  });
}

bool SimulatedPutWriter::Stage() {
  bool is_staged = true;
  for (const SimulatedPutLinePtr& line : lines_) {
    if (!line->up.empty() && line->up.back().has_staged()) continue;
    is_staged = false;
    const bool has_failed = !line->up.empty() && line->up.back().has_failure();
    if (has_failed || line->worker_left || !is_wanted_ || Now() >= deadline_) {
      truth_->puts().CheckNotSet(put_);
      return false;
    }
  }
  if (is_staged) Offer();
  return true;
}

void SimulatedPutWriter::Offer() {
  offered_ = std::make_unique<OfferedPut>(lines_.size(), has_replicas_, kPatience);
  deadline_ = Now() + absl::Seconds(1 + dice_->Roll(30));
  v1::PutCommand offer;
  offer.mutable_offer();
  for (size_t i = 0; i < lines_.size(); ++i) {
    lines_[i]->up.clear();
    if (lines_[i]->worker_left && dice_->OneIn(2)) {
      offered_->Report(i, WorkerPut::kOut);  // It never receives the offer.
    } else {
      lines_[i]->down.push_back(offer);
    }
  }
}

std::optional<WorkerPut> SimulatedPutWriter::Hear(SimulatedPutLine* line) {
  if (line->up.empty()) return line->worker_left ? std::optional(WorkerPut::kLost) : std::nullopt;
  const v1::PutEvent event = std::move(line->up.front());
  line->up.pop_front();
  if (!event.has_applied()) return WorkerPut::kOut;
  applied_step_ = event.applied().step();
  return WorkerPut::kApplied;
}

bool SimulatedPutWriter::Follow() {
  for (size_t i = 0; i < lines_.size(); ++i) {
    if (!offered_->IsPending(i) || dice_->OneIn(2)) continue;
    const std::optional<WorkerPut> news = Hear(lines_[i].get());
    if (news.has_value()) offered_->Report(i, *news);
  }
  v1::PutCommand withdraw;
  withdraw.mutable_withdraw();
  switch (offered_->Look(is_wanted_ && Now() < deadline_, Now())) {
    case PutVerdict::kWait:
      return true;
    case PutVerdict::kWithdraw:
      for (const SimulatedPutLinePtr& line : lines_) line->down.push_back(withdraw);
      return true;
    case PutVerdict::kSet:
      truth_->puts().CheckSet(put_, applied_step_);
      return false;
    case PutVerdict::kNotSet:
      truth_->puts().CheckNotSet(put_);
      return false;
    case PutVerdict::kUnknown:
      return false;
  }
  return false;
}

void SimulatedPutHub::Act(bool at_will) {
  if (at_will && dice_->OneIn(32)) Begin();
  if (writers_.empty()) return;
  const auto writer = writers_.begin() + dice_->Roll(writers_.size());
  if (at_will && dice_->OneIn(500)) (*writer)->Cut();
  if (at_will && dice_->OneIn(500)) (*writer)->GiveUp();
  if (!(*writer)->Work()) writers_.erase(writer);
}

void SimulatedPutHub::Begin() {
  const std::vector<JobView> jobs = coordinator_->core().ListJobs();
  if (jobs.empty()) return;
  const JobView& view = jobs[dice_->Roll(jobs.size())];
  const bool is_busy = std::any_of(writers_.begin(), writers_.end(),
                                   [&](const auto& writer) { return writer->job() == view.id; });
  if (is_busy || !view.status.bound || IsOver(view.status.state)) return;
  writers_.push_back(std::make_unique<SimulatedPutWriter>(
      ++num_puts_, view, find_truth_(view.id, view.generation), dice_, coordinator_));
}

SimulatedPutLinePtr SimulatedPutHub::FindLine(const std::string& session) const {
  for (const auto& writer : writers_) {
    SimulatedPutLinePtr line = writer->FindLine(session);
    if (line != nullptr) return line;
  }
  return nullptr;
}

}  // namespace tessera::coordinator
