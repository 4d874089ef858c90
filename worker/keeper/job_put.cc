#include "worker/keeper/job_put.h"

namespace tessera {

void JobPut::Begin(uint64_t put) {
  phase_ = Phase::kOffered;
  put_ = put;
  holders_.clear();
  failure_.clear();
}

void JobPut::Gone(int rank, uint64_t put, const std::string& failure) {
  if (put != put_) return;
  holders_.erase(rank);
  if (failure.empty() || phase_ != Phase::kOffered) return;
  phase_ = Phase::kLeaving;
  failure_ = failure;
}

void JobPut::Withdraw(uint64_t put) {
  if (put == put_ && phase_ == Phase::kOffered) phase_ = Phase::kLeaving;
}

bool JobPut::IsOver(uint64_t put) const {
  return put != put_ || (phase_ == Phase::kLeaving && holders_.empty());
}

}  // namespace tessera
