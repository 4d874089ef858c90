#include "worker/keeper/job_put.h"

#include "absl/strings/str_cat.h"

namespace tessera {

void JobPut::Begin(uint64_t put) {
  // Only one put at a time. The coordinator offers the next when this one is over.
  phase_ = Phase::kOffered;
  put_ = put;
  holders_.clear();
  ends_.clear();
  failure_.clear();
}

void JobPut::Gone(int rank, uint64_t put, const std::string& failure) {
  // Of an earlier put: executors answer late.
  if (put != put_) return;
  holders_.erase(rank);
  // One failure makes it void for all ranks, since all must apply it.
  if (failure.empty() || phase_ != Phase::kOffered) return;
  phase_ = Phase::kLeaving;
  failure_ = failure;
}

void JobPut::Ended(int rank) {
  // An executor that dies with the put once may have died of anything.
  if (holders_.erase(rank) == 0 || phase_ != Phase::kOffered || ++ends_[rank] < kMaxEnds) return;
  phase_ = Phase::kLeaving;
  failure_ = absl::StrCat("the executor of rank ", rank, " ended ", kMaxEnds, " times with it");
}

void JobPut::Withdraw(uint64_t put) {
  if (put == put_ && phase_ == Phase::kOffered) phase_ = Phase::kLeaving;
}

bool JobPut::IsOver(uint64_t put) const {
  // Over only when no executor has it any more: until then it could still be decided.
  return put != put_ || (phase_ == Phase::kLeaving && holders_.empty());
}

}  // namespace tessera
