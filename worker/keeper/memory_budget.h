// How much of the machine's memory a worker gives to jobs, so that a job which does not fit waits
// and takes nothing from the others.
//
//   MemoryBudget budget(MachineMemoryBytes() * 9 / 10);
//   auto held = budget.Reserve("job 'gpt'", bytes);       given back when `held` ends
//
// A job's executors take its memory before its first epoch: until then the reserved memory must be
// free in addition to what other jobs have reserved and not taken. Thread-safe; outlives what is
// reserved of it.
#ifndef TESSERA_WORKER_KEEPER_MEMORY_BUDGET_H_
#define TESSERA_WORKER_KEEPER_MEMORY_BUDGET_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/machine_memory.h"

namespace tessera {

class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t all_bytes,
                        std::function<int64_t()> available_bytes = AvailableMemoryBytes)
      : all_bytes_(all_bytes), available_bytes_(std::move(available_bytes)) {}

  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)),
          bytes_(other.bytes_),
          untaken_bytes_(other.untaken_bytes_) {}
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      std::swap(untaken_bytes_, other.untaken_bytes_);
      return *this;
    }
    ~Reservation() {
      if (budget_ != nullptr) budget_->GiveBack(bytes_, untaken_bytes_);
    }
    // The memory is there. One caller at a time.
    void SetTaken() {
      if (budget_ != nullptr) budget_->GiveBack(0, std::exchange(untaken_bytes_, 0));
    }

   private:
    friend class MemoryBudget;
    Reservation(MemoryBudget* budget, int64_t bytes)
        : budget_(budget), bytes_(bytes), untaken_bytes_(bytes) {}
    MemoryBudget* budget_ = nullptr;
    int64_t bytes_ = 0, untaken_bytes_ = 0;
  };

  // Errors: ResourceExhausted  says how much `what` needs, and how much is free
  absl::StatusOr<Reservation> Reserve(absl::string_view what, int64_t bytes);
  // Of memory that is there, whether or not it is more than jobs may have.
  Reservation ReserveTaken(int64_t bytes);
  int64_t all_bytes() const { return all_bytes_; }
  int64_t free_bytes() const;

 private:
  void GiveBack(int64_t bytes, int64_t untaken_bytes);

  const int64_t all_bytes_;
  const std::function<int64_t()> available_bytes_;
  mutable absl::Mutex mu_;
  int64_t reserved_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t untaken_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // Of these.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_MEMORY_BUDGET_H_
