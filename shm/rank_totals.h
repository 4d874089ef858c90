// What one rank has done since its worker holds the job: sums that only grow. They are the end of the
// rank's flight ring, so they outlive the executors that write them.
//
// Any thread of the executor adds; any number of readers, in other processes. All are wait-free.
// Readers take nothing for granted: an executor may have written anything.
#ifndef TESSERA_SHM_RANK_TOTALS_H_
#define TESSERA_SHM_RANK_TOTALS_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "shm/control_page.h"

namespace tessera {

inline constexpr uint32_t kCountedKinds = 32;  // More than there are kinds of operations.
// Upper bounds of step times. A step that took longer than the last one is in a bucket of its own.
inline constexpr std::array<int64_t, 15> kStepBounds_ns = {
    1'000'000,     2'500'000,     5'000'000,      10'000'000,     25'000'000,
    50'000'000,    100'000'000,   250'000'000,    500'000'000,    1'000'000'000,
    2'500'000'000, 5'000'000'000, 10'000'000'000, 30'000'000'000, 60'000'000'000};

struct alignas(32) OperationTotals {
  std::atomic<int64_t> done;
  std::atomic<int64_t> bytes;
  std::atomic<int64_t> wait_ns;  // From when it was enqueued until it was started.
  std::atomic<int64_t> run_ns;   // From then until it was done.
};

struct alignas(128) RankTotals {
  OperationTotals operations[kCountedKinds];              // By OpKind; [0]: of a kind that is none.
  std::atomic<int64_t> trainer_ns;                        // The executor waited for the trainer.
  std::atomic<int64_t> step_ns;                           // From one step's end to the next one's.
  std::atomic<int64_t> steps[kStepBounds_ns.size() + 1];  // By how long they took.
  std::atomic<double> gradient_norm;                      // Of the last step.
};

void CountOperation(RankTotals* totals, uint32_t kind, int64_t bytes, int64_t wait_ns,
                    int64_t run_ns);
void CountTrainerWait(RankTotals* totals, int64_t nanos);
void CountStep(RankTotals* totals, int64_t nanos, double gradient_norm);

// The sums at one moment, each by itself. Negative ones are 0 here.
struct RankSums {
  struct Operation {
    int64_t done = 0;
    int64_t bytes = 0;
    int64_t wait_ns = 0;
    int64_t run_ns = 0;
  };
  std::array<Operation, kCountedKinds> operations;
  int64_t trainer_ns = 0;
  int64_t step_ns = 0;
  std::array<int64_t, kStepBounds_ns.size() + 1> steps{};
  double gradient_norm = 0;
};
RankSums Sum(const RankTotals& totals);

}  // namespace tessera

#endif  // TESSERA_SHM_RANK_TOTALS_H_
