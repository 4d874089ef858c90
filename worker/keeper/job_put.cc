#include "worker/keeper/job_put.h"

#include "absl/strings/str_cat.h"

namespace tessera {

void JobPut::Begin(uint64_t put) {
  phase_ = Phase::kOffered;
  put_ = put;
  holders_.clear();
  ends_.clear();
  failure_.clear();
}

void JobPut::Gone(int rank, uint64_t put, const std::string& failure) {
  if (put != put_) return;
  holders_.erase(rank);
  if (failure.empty() || phase_ != Phase::kOffered) return;
  phase_ = Phase::kLeaving;
  failure_ = failure;
}

void JobPut::Ended(int rank) {
  if (holders_.erase(rank) == 0 || phase_ != Phase::kOffered || ++ends_[rank] < kMaxEnds) return;
  phase_ = Phase::kLeaving;
  failure_ = absl::StrCat("the executor of rank ", rank, " ended ", kMaxEnds, " times with it");
}

void JobPut::Withdraw(uint64_t put) {
  if (put == put_ && phase_ == Phase::kOffered) phase_ = Phase::kLeaving;
}

bool JobPut::IsOver(uint64_t put) const {
  return put != put_ || (phase_ == Phase::kLeaving && holders_.empty());
}

}  // namespace tessera
