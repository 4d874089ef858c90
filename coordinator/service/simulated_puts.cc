#include "coordinator/service/simulated_puts.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {

void SimulatedPuts::Offer(uint64_t put) {
  phase_ = Phase::kOffered;
  put_ = put;
  failure_.clear();
  if (voted_.empty()) return;
  phase_ = Phase::kLeaving;
  failure_ = "the rank is voting for another one";
}

void SimulatedPuts::Withdraw(uint64_t put) {
  if (put == put_ && phase_ == Phase::kOffered) phase_ = Phase::kLeaving;
}

bool SimulatedPuts::IsOver(uint64_t put) const {
  if (put != put_) return true;
  return phase_ == Phase::kLeaving &&
         std::none_of(voted_.begin(), voted_.end(),
                      [&](const auto& vote) { return vote.second == put; });
}

int64_t SimulatedPuts::AppliedAt(uint64_t put) const {
  if (put != decided_) return 0;
  const bool has_all = std::all_of(applied_.begin(), applied_.end(), [&](const auto& applied) {
    return applied.second >= decided_step_;
  });
  return has_all ? decided_step_ : 0;
}

uint64_t SimulatedPuts::VoteOf(int32_t rank) {
  if (phase_ != Phase::kOffered || put_ == decided_) return 0;
  voted_[rank] = put_;
  return put_;
}

void SimulatedPuts::Void(int32_t rank, const std::string& why) {
  if (voted_[rank] != put_ || phase_ != Phase::kOffered) return;
  phase_ = Phase::kLeaving;
  failure_ = why;
}

void SimulatedPuts::Decide(uint64_t put, int64_t step) {
  decided_ = put;
  decided_step_ = step;
}

void SimulatedPuts::Forget() {
  phase_ = Phase::kNone;
  put_ = 0;
  voted_.clear();
}

std::string SimulatedPuts::DecisionOf(int64_t step) const {
  return absl::StrCat(step, " ", step == decided_step_ ? decided_ : 0);
}

void SimulatedPuts::Learn(const std::string& decision) {
  const std::vector<std::string> numbers = absl::StrSplit(decision, ' ');
  int64_t step = 0;
  uint64_t put = 0;
  ASSERT_TRUE(numbers.size() == 2 && absl::SimpleAtoi(numbers[0], &step) &&
              absl::SimpleAtoi(numbers[1], &put))
      << decision;
  if (put != 0) Decide(put, step);
}

void SimulatedPuts::LearnAll(const SimulatedPuts& other) {
  Decide(other.decided_, other.decided_step_);
}

bool SimulatedPutSession::Work(const std::shared_ptr<SimulatedPuts>& puts) {
  if (is_offered_) return Follow();
  if (line_->down.empty()) {
    if (line_->coordinator_left) line_->worker_left = true;
    return !line_->coordinator_left;
  }
  const v1::PutCommand command = std::move(line_->down.front());
  line_->down.pop_front();
  return Obey(command, puts);
}

bool SimulatedPutSession::Obey(const v1::PutCommand& command,
                               const std::shared_ptr<SimulatedPuts>& puts) {
  v1::PutEvent event;
  switch (command.command_case()) {
    case v1::PutCommand::kStage:
      if (puts == nullptr) return Fail("does not hold the job");
      put_ = command.stage().put();
      puts_ = puts;
      event.mutable_ready();
      break;
    case v1::PutCommand::kSeal:
      event.mutable_staged();
      break;
    case v1::PutCommand::kOffer: {
      const std::shared_ptr<SimulatedPuts> held = puts_.lock();
      if (held == nullptr) return Fail("does not hold the job any more");
      held->Offer(put_);
      is_offered_ = true;
      return true;
    }
    default:
      event.mutable_withdrawn();
      return Finish(std::move(event));
  }
  line_->up.push_back(std::move(event));
  return true;
}

bool SimulatedPutSession::Follow() {
  if (!line_->down.empty()) {
    line_->down.clear();  // It is withdrawn.
    is_wanted_ = false;
  } else if (line_->coordinator_left) {
    is_wanted_ = false;
    has_ended_ = true;
  }
  const std::shared_ptr<SimulatedPuts> puts = puts_.lock();
  if (puts == nullptr) return Fail("does not hold the job any more");
  if (!is_wanted_ && !std::exchange(is_withdrawn_, true)) puts->Withdraw(put_);
  v1::PutEvent event;
  const int64_t step = puts->AppliedAt(put_);
  if (step != 0) {
    puts->Withdraw(put_);
    event.mutable_applied()->set_step(step);
    return Finish(std::move(event));
  }
  if (puts->IsOver(put_) && !puts->IsDecided(put_)) {
    if (!puts->failure().empty()) return Fail(puts->failure());
    event.mutable_withdrawn();
    return Finish(std::move(event));
  }
  if (!has_ended_ || !is_withdrawn_) return true;
  line_->worker_left = true;
  return false;
}

void SimulatedPutSession::End(size_t num_sent) {
  line_->up.resize(num_sent);
  line_->worker_left = true;
}

bool SimulatedPutSession::Finish(v1::PutEvent event) {
  line_->up.push_back(std::move(event));
  line_->worker_left = true;
  return false;
}

bool SimulatedPutSession::Fail(const std::string& why) {
  v1::PutEvent event;
  event.mutable_failure()->set_code(static_cast<int>(absl::StatusCode::kUnavailable));
  event.mutable_failure()->set_message(why);
  return Finish(std::move(event));
}

}  // namespace tessera::coordinator
