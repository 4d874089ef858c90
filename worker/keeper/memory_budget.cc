#include "worker/keeper/memory_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/bytes_text.h"

namespace tessera {

absl::StatusOr<MemoryBudget::Reservation> MemoryBudget::Reserve(absl::string_view what,
                                                                int64_t bytes) {
  absl::MutexLock lock(&mu_);
  // Written as a difference: the sum could overflow.
  if (bytes > all_bytes_ - reserved_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, " needs ", BytesText(bytes), " of memory here, and ",
                     BytesText(all_bytes_ - reserved_bytes_), " of ", BytesText(all_bytes_),
                     " are free (--memory-bytes)"));
  }
  // Memory that was granted and is not yet in use looks free to the kernel.
  const int64_t available = available_bytes_() - untaken_bytes_;
  // The worker has the last word: only it sees what other processes of the node use.
  if (bytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, " needs ", BytesText(bytes), " of memory here, and only ",
                     BytesText(std::max<int64_t>(available, 0)),
                     " are available: other processes use what jobs may have (--memory-bytes)"));
  }
  reserved_bytes_ += bytes;
  untaken_bytes_ += bytes;
  return Reservation(this, bytes);
}

MemoryBudget::Reservation MemoryBudget::ReserveTaken(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  reserved_bytes_ += bytes;
  Reservation reservation(this, bytes);
  reservation.untaken_bytes_ = 0;
  return reservation;
}

int64_t MemoryBudget::free_bytes() const {
  absl::MutexLock lock(&mu_);
  return std::max<int64_t>(all_bytes_ - reserved_bytes_, 0);
}

void MemoryBudget::GiveBack(int64_t bytes, int64_t untaken_bytes) {
  absl::MutexLock lock(&mu_);
  reserved_bytes_ -= bytes;
  untaken_bytes_ -= untaken_bytes;
}

}  // namespace tessera
