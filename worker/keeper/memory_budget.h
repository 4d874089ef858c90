// How much of the machine's memory a worker gives to jobs, so that a job which does not fit waits
// and takes nothing from the others.
//
//   MemoryBudget budget(MachineMemoryBytes() * 9 / 10);
//   auto held = budget.Reserve("job 'gpt'", bytes);       given back when `held` ends
//
// Memory of a job is taken page by page, as it is first written: what is reserved counts, whether
// or not it is there yet. Thread-safe; outlives what is reserved of it.
#ifndef TESSERA_WORKER_KEEPER_MEMORY_BUDGET_H_
#define TESSERA_WORKER_KEEPER_MEMORY_BUDGET_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace tessera {

// Of this machine, or of this process's control group where that has less.
int64_t MachineMemoryBytes();

class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t all_bytes) : all_bytes_(all_bytes) {}

  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Reservation() {
      if (budget_ != nullptr) budget_->GiveBack(bytes_);
    }

   private:
    friend class MemoryBudget;
    Reservation(MemoryBudget* budget, int64_t bytes) : budget_(budget), bytes_(bytes) {}
    MemoryBudget* budget_ = nullptr;
    int64_t bytes_ = 0;
  };

  // Errors: ResourceExhausted  says how much `what` needs, and how much is free
  absl::StatusOr<Reservation> Reserve(absl::string_view what, int64_t bytes);
  int64_t all_bytes() const { return all_bytes_; }
  int64_t free_bytes() const;

 private:
  void GiveBack(int64_t bytes);

  const int64_t all_bytes_;
  mutable absl::Mutex mu_;
  int64_t reserved_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// "1.8 TiB", "512.0 MiB": for display.
std::string BytesText(int64_t bytes);

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_MEMORY_BUDGET_H_
