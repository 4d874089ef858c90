#include "coordinator/service/simulated_put_truth.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace tessera::coordinator {

void SimulatedPutTruth::Vote(Epoch epoch, int64_t step, int32_t rank, bool can_read) {
  Votes& votes = votes_[{epoch, step}];
  votes.ranks |= uint32_t{1} << rank;
  votes.can_read &= can_read;
}

std::optional<bool> SimulatedPutTruth::OutcomeOf(Epoch epoch, int64_t step) const {
  const auto votes = votes_.find({epoch, step});
  if (votes == votes_.end() || votes->second.ranks != (uint32_t{1} << world_size_) - 1)
    return std::nullopt;
  return votes->second.can_read;
}

void SimulatedPutTruth::Record(uint64_t put, Epoch epoch, int64_t step) {
  if (epoch < begun_) return;  // A worker whose place another one has taken.
  EXPECT_EQ(not_set_.count(put), 0)
      << "put " << put << " is set, and its client was told otherwise";
  EXPECT_EQ(recorded_.emplace(put, step).first->second, step) << "put " << put << " is set twice";
}

void SimulatedPutTruth::Begin(Epoch epoch, int64_t resume_step, bool is_void) {
  begun_ = std::max(begun_, epoch);
  for (auto put = recorded_.begin(); put != recorded_.end();) {
    if (put->second <= resume_step) {
      ++put;
      continue;
    }
    EXPECT_TRUE(is_void || set_.count(put->first) == 0)
        << "put " << put->first << " is undone, and its client was told that it is set"
        << " at step " << put->second << ", and the job resumes at " << resume_step;
    if (is_void) void_.insert(put->first);
    put = recorded_.erase(put);
  }
}

void SimulatedPutTruth::ForgetEpochs() {
  votes_.clear();
  begun_ = Epoch();
}

void SimulatedPutTruth::ForgetAnswers() {
  set_.clear();
  not_set_.clear();
}

void SimulatedPutTruth::CheckSet(uint64_t put, int64_t step) {
  ++num_set_;
  if (void_.count(put) > 0) return;
  const auto recorded = recorded_.find(put);
  ASSERT_NE(recorded, recorded_.end()) << "put " << put << " is not set";
  EXPECT_EQ(recorded->second, step) << "put " << put << " is set at another step";
  set_.insert(put);
}

void SimulatedPutTruth::CheckNotSet(uint64_t put) {
  EXPECT_EQ(recorded_.count(put), 0) << "put " << put << " is set";
  not_set_.insert(put);
}

}  // namespace tessera::coordinator
