#include "shm/rank_totals.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

void Add(std::atomic<int64_t>* sum, int64_t value) {
  // Relaxed: sums are for metrics, and order nothing.
  sum->fetch_add(value, std::memory_order_relaxed);
}

int64_t Read(const std::atomic<int64_t>& sum) {
  // The memory is writable to executors, and a counter of Prometheus is not negative.
  return std::max<int64_t>(sum.load(std::memory_order_relaxed), 0);
}

}  // namespace

void CountOperation(RankTotals* totals, uint32_t kind, int64_t bytes, int64_t wait_ns,
                    int64_t run_ns) {
  OperationTotals& operation = totals->operations[kind < kCountedKinds ? kind : 0];
  Add(&operation.done, 1);
  Add(&operation.bytes, bytes);
  Add(&operation.wait_ns, wait_ns);
  Add(&operation.run_ns, run_ns);
}

void CountTrainerWait(RankTotals* totals, int64_t nanos) { Add(&totals->trainer_ns, nanos); }

void CountStep(RankTotals* totals, int64_t nanos, double gradient_norm) {
  const auto bound = std::lower_bound(kStepBounds_ns.begin(), kStepBounds_ns.end(), nanos);
  Add(&totals->steps[bound - kStepBounds_ns.begin()], 1);
  Add(&totals->step_ns, nanos);
  totals->gradient_norm.store(gradient_norm, std::memory_order_relaxed);
}

RankSums Sum(const RankTotals& totals) {
  RankSums sums;
  for (uint32_t kind = 0; kind < kCountedKinds; ++kind) {
    const OperationTotals& from = totals.operations[kind];
    sums.operations[kind] = {Read(from.done), Read(from.bytes), Read(from.wait_ns),
                             Read(from.run_ns)};
  }
  sums.trainer_ns = Read(totals.trainer_ns);
  sums.step_ns = Read(totals.step_ns);
  for (size_t i = 0; i < sums.steps.size(); ++i) sums.steps[i] = Read(totals.steps[i]);
  const double norm = totals.gradient_norm.load(std::memory_order_relaxed);
  sums.gradient_norm = std::isfinite(norm) ? norm : 0;
  return sums;
}

}  // namespace tessera
