#include "coordinator/service/simulated_truth.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace tessera::coordinator {

void SimulatedTruth::Announce(const OrderAnnouncement& event) {
  announced_[{event.epoch, event.position.step, event.position.sequence}][event.rank] = event.entry;
}

void SimulatedTruth::Take(Epoch epoch, int64_t step, int32_t rank, const Vote& vote) {
  Votes& votes = votes_[{epoch, step}];
  votes.ranks |= uint32_t{1} << rank;
  votes.saves.insert(vote.save);
  votes.is_saving |= vote.is_saving;
  votes.puts.insert(vote.put);
  if (!IsDecided(epoch, step)) return;
  decided_ = std::max(decided_, step);
  const int64_t wanted = votes.saves.size() == 1 ? *votes.saves.begin() : 0;
  if (wanted != 0 || (!votes.is_saving && dice_->OneIn(8))) saves_.Decide(epoch, step, wanted);
}

bool SimulatedTruth::IsDecided(Epoch epoch, int64_t step) const {
  const auto votes = votes_.find({epoch, step});
  return votes != votes_.end() && votes->second.ranks == (uint32_t{1} << world_size()) - 1;
}

uint64_t SimulatedTruth::AgreedPut(Epoch epoch, int64_t step) const {
  const std::set<uint64_t>& puts = votes_.at({epoch, step}).puts;
  return puts.size() == 1 ? *puts.begin() : 0;
}

void SimulatedTruth::VoteForPut(Epoch epoch, int64_t step, int32_t rank, bool can_read) {
  puts_.Vote(epoch, step, rank, can_read);
  if (puts_.OutcomeOf(epoch, step).value_or(false)) decided_ = std::max(decided_, step);
}

void SimulatedTruth::Begin(Epoch epoch, int64_t resume_step) {
  const auto [begun, is_new] = begun_.emplace(epoch, resume_step);
  EXPECT_EQ(begun->second, resume_step) << "two workers begin one epoch at different steps";
  // Where no memory was lost, not even a step is forgotten that nobody has reported. Of a hybrid
  // job another worker may have taken the place of a silent one that knew of it.
  if (is_new && !has_lost_memory_ && !is_hybrid()) {
    EXPECT_GE(resume_step, finished_) << "a step that was taken is forgotten";
  }
  // A job without another copy is lost, or begins with its initial values where no step is known.
  const bool is_void = has_lost_memory_ && (!is_hybrid() || resume_step == 0);
  if (is_new) puts_.Begin(epoch, resume_step, is_void);
  // What was decided beyond this went with all that held it.
  if (is_new && has_lost_memory_) decided_ = std::min(decided_, resume_step);
}

void SimulatedTruth::GoBack() {
  shown_committed_ = shown_epoch_ = 0;
  resume_steps_.clear();
  saves_.Forget();
  puts_.ForgetAnswers();
  has_gone_back_ = true;
  // What of it was dropped is no longer known to be.
  if (is_deleted_ || has_lost_memory_) LoseMemory();
}

void SimulatedTruth::ComeBackAs(const JobView& view) {
  CheckView(view);
  if (view.status.state == JobState::kRunning)
    resume_steps_[view.status.epoch] = view.status.resume_step;
}

void SimulatedTruth::LoseMemory() {
  has_lost_memory_ = true;
  if (!has_gone_back_) return;
  // It may begin again, in epochs that it has been in.
  begun_.clear();
  votes_.clear();
  puts_.ForgetEpochs();
}

void SimulatedTruth::CheckView(const JobView& view) {
  if (view.status.state == JobState::kOrphaned) return;
  EXPECT_GE(view.committed_step.value(), shown_committed_) << "a committed step was lost";
  EXPECT_LE(view.committed_step.value(), decided_) << "a step committed that nobody decided";
  EXPECT_GE(view.status.epoch.value(), shown_epoch_);
  shown_committed_ = view.committed_step.value();
  shown_epoch_ = view.status.epoch.value();
  shown_state_ = view.status.state;
}

void SimulatedTruth::CheckDrop(bool has_begun, int64_t decided_step) {
  const bool is_over = is_deleted_ || shown_state_ == JobState::kLost;
  // What a hybrid job keeps is checked where its ranks are placed.
  // What it had before the coordinator went back may have begun again elsewhere.
  const bool is_nothing = has_gone_back_ && decided_step == 0;
  EXPECT_TRUE(is_over || is_nothing || !has_begun || has_lost_memory_ || decided_ == 0 ||
              is_hybrid())
      << "shards are dropped of job " << id_.value() << ", decided " << decided_;
  // A command from before the coordinator went back may have begun an epoch with what was left.
  if (has_lost_memory_) LoseMemory();
}

void SimulatedTruth::CheckRelease(const OrderRelease& release) const {
  const auto announced =
      announced_.find({release.epoch, release.position.step, release.position.sequence});
  ASSERT_NE(announced, announced_.end());
  EXPECT_EQ(announced->second.size(), world_size()) << "released before all announced";
  for (const auto& [rank, entry] : announced->second) {
    EXPECT_EQ(entry, announced->second.begin()->second) << "released though the entries differ";
  }
}

void SimulatedTruth::CheckStart(const StartEpoch& start) {
  // One epoch, one step to resume from, and none that was decided is forgotten.
  const auto [known, is_new] = resume_steps_.emplace(start.epoch, start.resume_step);
  EXPECT_EQ(known->second, start.resume_step);
  if (!is_new || begun_.count(start.epoch) > 0) return;
  EXPECT_GE(start.resume_step.value(), shown_committed_);
  EXPECT_LE(start.resume_step.value(), decided_);
}

}  // namespace tessera::coordinator
