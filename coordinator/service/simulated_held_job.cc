#include "coordinator/service/simulated_held_job.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {

std::set<int32_t> LocalRanks(const v1::Job& job, const std::string& worker) {
  std::set<int32_t> ranks;
  for (const v1::RankPlacement& place : job.placements()) {
    if (place.worker_id() == worker) ranks.insert(place.rank());
  }
  return ranks;
}

void SimulatedHeldJob::RankRun::BeginAt(int64_t new_step) {
  step = new_step;
  sequence = 0;
  voted = false;
  put = 0;
  pending.reset();
}

SimulatedHeldJob::SimulatedHeldJob(std::string worker, const v1::Job& job, SimulatedTruth* truth,
                                   SimulatedDice* dice, Emit emit)
    : worker_(std::move(worker)),
      truth_(truth),
      dice_(dice),
      emit_(std::move(emit)),
      saves_(job, &truth->saves(), emit_),
      job_(job) {}

void SimulatedHeldJob::Prepare(const v1::Job& job) {
  const Epoch epoch(job.epoch());
  if (epoch < epoch_) return;
  if (epoch == epoch_) {
    if (phase_ == Phase::kPrepared) emit_(PreparedEvent());
    return;
  }
  job_ = job;
  epoch_ = epoch;
  phase_ = Phase::kPreparing;
  failure_.Clear();
  saves_.EndEpoch();
  puts_->EndEpoch();
  std::map<int32_t, RankRun> before;
  before.swap(ranks_);
  for (const int32_t rank : LocalRanks(job, worker_))
    ranks_[rank].last_report = before[rank].last_report;
}

bool SimulatedHeldJob::IsVoid(const v1::PrepareEpoch& prepare) const {
  const std::set<int32_t> local = LocalRanks(prepare.job(), worker_);
  if (local != LocalRanks(job_, worker_)) return true;
  if (!has_begun_ || local.empty()) return false;
  return prepare.discards_state() ||
         epoch_ < Epoch(prepare.job().placements(*local.begin()).since_epoch());
}

v1::WorkerEvent SimulatedHeldJob::PreparedEvent() const {
  v1::WorkerEvent event;
  v1::EpochPrepared* prepared = event.mutable_prepared();
  prepared->set_job_id(job_.job_id());
  prepared->set_generation(job_.generation());
  prepared->set_epoch(epoch_.value());
  prepared->set_decided_step(decided_step_);
  prepared->set_decision(puts_->DecisionOf(decided_step_));
  prepared->set_holds_nothing(!HoldsAll());
  for (const auto& [rank, run] : ranks_)
    (*prepared->mutable_rank_addresses())[rank] = absl::StrCat("127.0.0.1:", 1000 + rank);
  return event;
}

void SimulatedHeldJob::Start(const v1::StartEpoch& start) {
  if (start.epoch() != epoch_.value() || phase_ != Phase::kPrepared) return;
  const bool is_rebuilt = std::any_of(start.rebuilt_ranks().begin(), start.rebuilt_ranks().end(),
                                      [&](int32_t rank) { return ranks_.count(rank) > 0; });
  EXPECT_TRUE(HoldsAll() || is_rebuilt || start.resume_step() == 0) << "there are no shards here";
  EXPECT_TRUE(is_rebuilt || start.resume_step() >= decided_step_)
      << "a step is forgotten that was decided here";
  truth_->Begin(epoch_, start.resume_step());
  phase_ = Phase::kRunning;
  has_begun_ = true;
  lacks_values_ = is_rebuilt;
  if (!is_rebuilt) {
    decided_step_ = start.resume_step();
    if (!start.decision().empty()) puts_->Learn(start.decision());
  }
  first_step_ = start.resume_step() + 1;
  for (auto& [rank, run] : ranks_) {
    run.BeginAt(first_step_);
    puts_->Apply(rank, start.resume_step());
  }
}

void SimulatedHeldJob::Rebuild(const SimulatedHeldJob& source) {
  lacks_values_ = false;
  decided_step_ = first_step_ - 1;
  puts_->LearnAll(*source.puts_);
}

void SimulatedHeldJob::Release(const v1::OrderRelease& release) {
  const auto run = ranks_.find(release.rank());
  if (release.epoch() != epoch_.value() || run == ranks_.end() || !run->second.pending.has_value())
    return;
  const v1::OrderAnnouncement& pending = *run->second.pending;
  if (pending.step() != release.step() || pending.sequence() != release.sequence()) return;
  run->second.pending.reset();
  ++run->second.sequence;
}

void SimulatedHeldJob::Mismatch(const v1::OrderMismatch& mismatch) {
  if (mismatch.epoch() != epoch_.value() || phase_ == Phase::kPreparing) return;
  EndEpoch();
}

void SimulatedHeldJob::Fail(const std::string& reason) {
  if ((phase_ != Phase::kPrepared && phase_ != Phase::kRunning) || ranks_.empty()) return;
  EndEpoch();
  v1::RankFailure* failure = failure_.mutable_failure();
  failure->set_job_id(job_.job_id());
  failure->set_generation(job_.generation());
  failure->set_epoch(epoch_.value());
  failure->set_rank(ranks_.begin()->first);
  failure->set_reason(reason);
  emit_(failure_);
}

void SimulatedHeldJob::EndEpoch() {
  phase_ = Phase::kFailed;
  saves_.EndEpoch();
  puts_->EndEpoch();
  for (auto& [rank, run] : ranks_) run.pending.reset();
}

void SimulatedHeldJob::EndEpochOfDaemonBefore() {
  saves_.Forget();
  puts_->Forget();
  for (auto& [rank, run] : ranks_) run.last_report.reset();
  phase_ = Phase::kRunning;
  Fail("daemon replaced");
}

void SimulatedHeldJob::Work() {
  if (phase_ == Phase::kPreparing) {
    phase_ = Phase::kPrepared;
    emit_(PreparedEvent());
  }
  if (phase_ != Phase::kRunning || lacks_values_ || ranks_.empty()) return;
  auto& [rank, run] = *std::next(ranks_.begin(), dice_->Roll(ranks_.size()));
  WorkOn(rank, &run);
}

void SimulatedHeldJob::WorkOn(int32_t rank, RankRun* run) {
  if (dice_->OneIn(3)) saves_.Work(rank);
  if (run->pending.has_value()) return;
  if (run->put != 0) return WorkOnPut(rank, run);
  if (run->voted) {
    // Its part is done, and the next step begins, when the data plane has decided this one.
    if (truth_->IsDecided(epoch_, run->step)) FinishStep(rank, run);
  } else if (run->sequence == kOperations) {
    VoteForStep(rank, run);
  } else if (run->step == first_step_) {
    AnnounceNext(rank, run);
  } else {
    ++run->sequence;  // By the record.
  }
}

void SimulatedHeldJob::AnnounceNext(int32_t rank, RankRun* run) {
  const bool deviates = std::exchange(deviates_, false);
  const OrderEntry entry{deviates ? "reduce" : "unshard", UnitId(run->sequence), DType::kFp32, 8};
  truth_->Announce({truth_->id(),
                    truth_->generation(),
                    epoch_,
                    Rank(rank),
                    {Step(run->step), run->sequence},
                    entry});
  v1::WorkerEvent event;
  v1::OrderAnnouncement* order = event.mutable_order();
  order->set_job_id(job_.job_id());
  order->set_generation(job_.generation());
  order->set_epoch(epoch_.value());
  order->set_rank(rank);
  order->set_step(run->step);
  order->set_sequence(run->sequence);
  order->mutable_entry()->set_operation(entry.operation);
  order->mutable_entry()->set_unit(entry.unit.value());
  order->mutable_entry()->set_dtype(v1::DTYPE_FP32);
  order->mutable_entry()->set_count(entry.count_elements);
  run->pending = *order;
  emit_(std::move(event));
}

void SimulatedHeldJob::VoteForStep(int32_t rank, RankRun* run) {
  run->voted = true;
  SimulatedTruth::Vote vote;
  vote.save = saves_.WantedBy(rank);
  vote.is_saving = saves_.IsUnderWay(rank);
  vote.put = puts_->VoteOf(rank);
  truth_->Take(epoch_, run->step, rank, vote);
}

void SimulatedHeldJob::FinishStep(int32_t rank, RankRun* run) {
  SimulatedSave* save = truth_->saves().Find(epoch_, run->step);
  if (save != nullptr) saves_.Begin(rank, save);
  run->put = truth_->AgreedPut(epoch_, run->step);
  if (run->put == 0) puts_->Settle(rank);
  FinishVersion(rank, run);
}

void SimulatedHeldJob::WorkOnPut(int32_t rank, RankRun* run) {
  if (!run->voted) {
    run->voted = true;
    return truth_->VoteForPut(epoch_, run->step, rank, !dice_->OneIn(32));
  }
  const std::optional<bool> is_decided = truth_->puts().OutcomeOf(epoch_, run->step);
  if (!is_decided.has_value()) return;
  if (*is_decided) {
    puts_->Decide(run->put, run->step);
    truth_->puts().Record(run->put, epoch_, run->step);
    FinishVersion(rank, run);
  } else {
    puts_->Void(rank, "a rank could not read it");
    run->voted = false;
  }
  puts_->Settle(rank);
  run->put = 0;
}

// The rank has the version, and reports it.
void SimulatedHeldJob::FinishVersion(int32_t rank, RankRun* run) {
  decided_step_ = std::max(decided_step_, run->step);
  truth_->Finish(run->step);
  puts_->Apply(rank, run->step);
  v1::WorkerEvent event;
  v1::StepReport* report = event.mutable_step();
  report->set_job_id(job_.job_id());
  report->set_generation(job_.generation());
  report->set_epoch(epoch_.value());
  report->set_rank(rank);
  report->set_step(run->step);
  report->set_order_hash(1);
  run->last_report = *report;
  ++run->step;
  run->sequence = 0;
  run->voted = false;
  emit_(std::move(event));
}

v1::JobProgress SimulatedHeldJob::Progress() const {
  v1::JobProgress progress;
  progress.set_job_id(job_.job_id());
  progress.set_generation(job_.generation());
  progress.set_epoch(epoch_.value());
  for (const auto& [rank, run] : ranks_) {
    v1::RankStatus& status = (*progress.mutable_ranks())[rank];
    status.set_step(run.step);
    status.set_sequence(run.sequence);
    status.set_attached(true);
  }
  return progress;
}

std::vector<v1::WorkerEvent> SimulatedHeldJob::Unacknowledged() const {
  std::vector<v1::WorkerEvent> events;
  for (const auto& [rank, run] : ranks_) {
    if (run.last_report.has_value()) *events.emplace_back().mutable_step() = *run.last_report;
    if (run.pending.has_value()) *events.emplace_back().mutable_order() = *run.pending;
  }
  for (v1::WorkerEvent& event : saves_.Unacknowledged()) events.push_back(std::move(event));
  if (phase_ == Phase::kPrepared) events.push_back(PreparedEvent());
  if (phase_ == Phase::kFailed && failure_.has_failure()) events.push_back(failure_);
  return events;
}

v1::WorkerEvent SimulatedHeldJob::Held() const {
  v1::WorkerEvent event;
  v1::HeldJob* held = event.mutable_held();
  *held->mutable_job() = job_;
  held->mutable_job()->clear_ranks();
  held->mutable_job()->clear_state_reason();
  held->set_decided_step(decided_step_);
  held->set_has_begun(has_begun_);
  return event;
}

std::string SimulatedHeldJob::Describe() const {
  static constexpr const char* kPhases[] = {"none", "preparing", "prepared", "running", "failed"};
  return absl::StrCat(job_.job_id(), "/", job_.generation(), " epoch ", epoch_.value(), " ",
                      kPhases[static_cast<int>(phase_)], ", decided ", decided_step_,
                      has_begun_ ? ", has begun" : "", lacks_values_ ? ", lacks values" : "",
                      ", ranks ", ranks_.size());
}

}  // namespace tessera::coordinator
