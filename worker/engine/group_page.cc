#include "worker/engine/group_page.h"

namespace tessera {

void RecordDecision(GroupPage* group, int64_t step, double gradient_scale, double gradient_norm) {
  if (group->decided_step.load(std::memory_order_acquire) >= step) return;
  Decision& decision = group->decisions[step % 2];
  decision.gradient_scale.store(gradient_scale, std::memory_order_relaxed);
  decision.gradient_norm.store(gradient_norm, std::memory_order_relaxed);
  int64_t before = step - 1;
  group->decided_step.compare_exchange_strong(before, step, std::memory_order_acq_rel);
}

void PublishApplied(GroupPage* group, int rank, int64_t step) {
  RankRecord& record = group->ranks[rank];
  record.applied_step.store(step, std::memory_order_release);
  Publish(&record.applied_version, static_cast<uint32_t>(step));
}

}  // namespace tessera
