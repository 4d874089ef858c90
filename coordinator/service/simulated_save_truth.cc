#include "coordinator/service/simulated_save_truth.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {

void SimulatedSaveTruth::Decide(Epoch epoch, int64_t step, int64_t number) {
  const auto next = made_.upper_bound({epoch, INT64_MAX});
  int64_t ordinal = 1;
  if (next != made_.begin() && std::prev(next)->first.first == epoch)
    ordinal = std::prev(next)->first.second + 1;
  const std::string path = number != 0 ? wanted_[number] : absl::StrCat("/own/", ordinal);
  made_[{epoch, ordinal}] = {epoch, ordinal, number, step, path, 0, false, std::nullopt};
}

SimulatedSave* SimulatedSaveTruth::Find(Epoch epoch, int64_t step) {
  for (auto made = made_.lower_bound({epoch, 0}); made != made_.end() && made->first.first == epoch;
       ++made) {
    if (made->second.step == step) return &made->second;
  }
  return nullptr;
}

void SimulatedSaveTruth::Write(SimulatedSave* save, int32_t rank) {
  save->written |= uint32_t{1} << rank;
  if (save->outcome.has_value() || save->written != (uint32_t{1} << world_size_) - 1) return;
  save->outcome = save->cancelled   ? absl::StatusCode::kCancelled
                  : dice_->OneIn(4) ? absl::StatusCode::kResourceExhausted
                                    : absl::StatusCode::kOk;
}

void SimulatedSaveTruth::Check(const Save& save, const SimulatedClock& clock) {
  if (save.requested()) wanted_[save.number] = save.spec.path;
  const absl::Time deadline = clock.FromSteady(save.expires_at);
  const auto before = deadlines_.find(save.number);
  if (before != deadlines_.end()) {
    EXPECT_EQ(deadline, clock.Recall(before->second)) << "save " << save.number;
  }
  deadlines_[save.number] = clock.Note(deadline);
  overdue_.erase(save.number);
  const auto known = journalled_.find(save.number);
  if (known != journalled_.end() && known->second.state == SaveState::kEnded) {
    CheckChange(known->second, save);
  } else if (save.state == SaveState::kEnded) {
    if (absl::IsDeadlineExceeded(save.outcome)) {
      EXPECT_GE(clock.now(), deadline) << "save " << save.number << " ended before its time";
    }
  }
  if (save.state == SaveState::kEnded && save.ordinal != 0) CheckEnd(save);
  journalled_[save.number] = save;
}

void SimulatedSaveTruth::CheckWaits(int64_t number, const SimulatedClock& clock) {
  const auto deadline = deadlines_.find(number);
  if (deadline == deadlines_.end()) return;  // An older journal has it.
  if (clock.now() < clock.Recall(deadline->second)) return;
  // At first it may have been taken by a step, which ended with its epoch only then.
  EXPECT_TRUE(overdue_.insert(number).second) << "save " << number << " waits too long";
}

int64_t SimulatedSaveTruth::num_journalled() const {
  int64_t num = 0;
  for (const auto& [number, save] : journalled_) {
    num += save.requested() && save.state == SaveState::kEnded && save.outcome.ok();
  }
  return num;
}

void SimulatedSaveTruth::CheckEnd(const Save& save) const {
  for (const auto& [number, other] : journalled_) {
    EXPECT_FALSE(number != save.number && other.epoch == save.epoch &&
                 other.ordinal == save.ordinal)
        << "saves " << number << " and " << save.number << " are one";
  }
  if (absl::IsAborted(save.outcome)) return;  // Who says so has not heard how it ended.
  const auto made = made_.find({save.epoch, save.ordinal});
  ASSERT_NE(made, made_.end()) << "save " << save.number << " was never made";
  ASSERT_TRUE(made->second.outcome.has_value()) << "save " << save.number << " has not ended";
  EXPECT_EQ(*made->second.outcome, save.outcome.code());
  EXPECT_EQ(made->second.step, save.step.value());
  EXPECT_EQ(made->second.path, save.spec.path);
  EXPECT_EQ(made->second.number, save.requested() ? save.number : 0);
}

void SimulatedSaveTruth::CheckChange(const Save& before, const Save& save) const {
  EXPECT_EQ(save.state, SaveState::kEnded) << "save " << save.number << " had ended";
  const bool stands =
      before.outcome.ok() || (before.ordinal != 0 && !absl::IsAborted(before.outcome));
  if (!stands) return;
  EXPECT_EQ(save.outcome.code(), before.outcome.code()) << "save " << save.number;
  EXPECT_EQ(save.step, before.step);
  EXPECT_EQ(save.epoch, before.epoch);
  EXPECT_EQ(save.ordinal, before.ordinal);
}

}  // namespace tessera::coordinator
