#include "worker/engine/group_page.h"

namespace tessera {

void UpdateCounts::Record(int64_t step, const std::vector<bool>& touched) const {
  for (int p = 0; p < num_parameters_; ++p) {
    const uint32_t before = At(step - 1, p).load(std::memory_order_relaxed);
    At(step, p).store(before + (touched[p] ? 1 : 0), std::memory_order_relaxed);
  }
}

std::vector<int64_t> UpdateCounts::Load(int64_t step) const {
  std::vector<int64_t> updates(num_parameters_);
  for (int p = 0; p < num_parameters_; ++p) {
    const uint32_t count = At(step, p).load(std::memory_order_relaxed);
    updates[p] = count == At(step - 1, p).load(std::memory_order_relaxed) ? 0 : count;
  }
  return updates;
}

void RecordDecision(GroupPage* group, UpdateCounts counts, int64_t step, const StepNumbers& numbers,
                    const std::vector<bool>& touched) {
  if (group->decided_step.load(std::memory_order_acquire) >= step) return;
  counts.Record(step, touched);
  Decision& decision = group->decisions[step % 2];
  constexpr auto kRelaxed = std::memory_order_relaxed;
  decision.gradient_scale.store(numbers.gradient_scale, kRelaxed);
  decision.gradient_norm.store(numbers.gradient_norm, kRelaxed);
  decision.is_write.store(numbers.is_write ? 1 : 0, kRelaxed);
  decision.is_trainers_step.store(numbers.is_trainers_step ? 1 : 0, kRelaxed);
  const int64_t writes = group->decisions[(step + 1) % 2].writes.load(kRelaxed);
  decision.writes.store(writes + (numbers.is_write && !numbers.is_trainers_step ? 1 : 0), kRelaxed);
  for (size_t i = 0; i < numbers.groups.size(); ++i) {
    const HyperParameters& from = numbers.groups[i];
    SharedHyperParameters& to = decision.groups[i];
    to.learning_rate.store(from.learning_rate, kRelaxed);
    to.beta1.store(from.beta1, kRelaxed);
    to.beta2.store(from.beta2, kRelaxed);
    to.epsilon.store(from.epsilon, kRelaxed);
    to.weight_decay.store(from.weight_decay, kRelaxed);
    to.momentum.store(from.momentum, kRelaxed);
  }
  int64_t before = step - 1;
  group->decided_step.compare_exchange_strong(before, step, std::memory_order_acq_rel);
}

StepNumbers LoadDecision(const GroupPage& group, int64_t step, int num_groups) {
  const Decision& decision = group.decisions[step % 2];
  constexpr auto kRelaxed = std::memory_order_relaxed;
  StepNumbers numbers;
  numbers.gradient_scale = decision.gradient_scale.load(kRelaxed);
  numbers.gradient_norm = decision.gradient_norm.load(kRelaxed);
  numbers.is_write = decision.is_write.load(kRelaxed) != 0;
  numbers.is_trainers_step = decision.is_trainers_step.load(kRelaxed) != 0;
  numbers.writes = decision.writes.load(kRelaxed);
  for (int i = 0; i < num_groups; ++i) {
    const SharedHyperParameters& from = decision.groups[i];
    HyperParameters& to = numbers.groups.emplace_back();
    to.learning_rate = from.learning_rate.load(kRelaxed);
    to.beta1 = from.beta1.load(kRelaxed);
    to.beta2 = from.beta2.load(kRelaxed);
    to.epsilon = from.epsilon.load(kRelaxed);
    to.weight_decay = from.weight_decay.load(kRelaxed);
    to.momentum = from.momentum.load(kRelaxed);
  }
  return numbers;
}

void PublishApplied(GroupPage* group, int rank, int64_t step) {
  RankRecord& record = group->ranks[rank];
  record.applied_step.store(step, std::memory_order_release);
  Publish(&record.applied_version, static_cast<uint32_t>(step));
}

}  // namespace tessera
