#include "worker/executor/state_copy.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"

namespace tessera {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;
// Fresh memory in pages of this size is filled several times faster than in small ones.
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

std::byte* ReserveFresh(int64_t size_bytes) {
  const int64_t whole = (size_bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  auto* memory =
      static_cast<std::byte*>(aligned_alloc(kHugePageBytes, std::max(whole, kHugePageBytes)));
  if (memory != nullptr) (void)madvise(memory, whole, MADV_HUGEPAGE);  // Where there are any.
  return memory;
}

}  // namespace

absl::Status StateCopy::Begin(int64_t version, std::vector<ConstValues> slices,
                              const std::atomic<bool>* stopped) {
  Clear();
  stopped_ = stopped;
  slices_ = std::move(slices);
  for (const ConstValues& slice : slices_) {
    offsets_bytes_.push_back(size_bytes_);
    const auto slice_bytes = static_cast<int64_t>(slice.size_bytes());
    for (int64_t at = 0; at < slice_bytes; at += kPieceBytes) {
      pieces_.push_back({static_cast<const std::byte*>(slice.data()) + at, size_bytes_ + at,
                         std::min(kPieceBytes, slice_bytes - at)});
    }
    size_bytes_ += slice_bytes;
  }
  copy_.reset(ReserveFresh(size_bytes_));
  if (copy_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a copy of ", size_bytes_, " bytes of the state"));
  }
  if (pieces_.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  copying_ = version;
  return absl::OkStatus();
}

void StateCopy::CopyPieces() {
  while (!stopped_->load()) {
    const size_t i = next_piece_.fetch_add(1);
    if (i >= pieces_.size()) return;
    (void)FaultPoint("save.copy");
    memcpy(copy_.get() + pieces_[i].offset_bytes, pieces_[i].from, pieces_[i].size_bytes);
    if (num_copied_.fetch_add(1) + 1 < pieces_.size()) continue;
    absl::MutexLock lock(&mu_);
    copying_.reset();
  }
}

bool StateCopy::CopyAll() {
  CopyPieces();
  absl::MutexLock lock(&mu_);
  // The last pieces may be in the owner's hands, who finishes what it has begun.
  const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !copying_.has_value() || stopped_->load();
  };
  mu_.Await(absl::Condition(&over));
  const bool all = num_copied_.load() == pieces_.size();
  copying_.reset();
  return all;
}

bool StateCopy::MayOverwriteLocked(int64_t step) const {
  return !copying_.has_value() || step < *copying_ + 2;
}

bool StateCopy::MayOverwrite(int64_t step) const {
  absl::MutexLock lock(&mu_);
  return MayOverwriteLocked(step);
}

void StateCopy::AwaitCopied(int64_t step) {
  if (MayOverwrite(step)) return;
  CopyPieces();
  const auto may = [this, step]()
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return MayOverwriteLocked(step); };
  absl::MutexLock lock(&mu_, absl::Condition(&may));
}

ConstValues StateCopy::slice(size_t i) const {
  return ConstValues(copy_.get() + offsets_bytes_[i], static_cast<int64_t>(slices_[i].size()),
                     slices_[i].dtype());
}

void StateCopy::Clear() {
  {
    absl::MutexLock lock(&mu_);
    copying_.reset();
  }
  copy_.reset();
  slices_.clear();
  offsets_bytes_.clear();
  pieces_.clear();
  size_bytes_ = 0;
  next_piece_.store(0);
  num_copied_.store(0);
}

}  // namespace tessera
