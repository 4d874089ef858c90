#include "worker/engine/group_page.h"

#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

void StoreGroups(const std::vector<HyperParameters>& groups, Decision* decision) {
  for (size_t i = 0; i < groups.size(); ++i) {
    const HyperParameters& from = groups[i];
    SharedHyperParameters& to = decision->groups[i];
    to.learning_rate.store(from.learning_rate, kRelaxed);
    to.beta1.store(from.beta1, kRelaxed);
    to.beta2.store(from.beta2, kRelaxed);
    to.epsilon.store(from.epsilon, kRelaxed);
    to.weight_decay.store(from.weight_decay, kRelaxed);
    to.momentum.store(from.momentum, kRelaxed);
  }
}

std::vector<HyperParameters> LoadGroups(const Decision& decision, int num_groups) {
  std::vector<HyperParameters> groups;
  for (int i = 0; i < num_groups; ++i) {
    const SharedHyperParameters& from = decision.groups[i];
    HyperParameters& to = groups.emplace_back();
    to.learning_rate = from.learning_rate.load(kRelaxed);
    to.beta1 = from.beta1.load(kRelaxed);
    to.beta2 = from.beta2.load(kRelaxed);
    to.epsilon = from.epsilon.load(kRelaxed);
    to.weight_decay = from.weight_decay.load(kRelaxed);
    to.momentum = from.momentum.load(kRelaxed);
  }
  return groups;
}

}  // namespace

void UpdateCounts::Record(int64_t step, const std::vector<bool>& touched) const {
  for (int p = 0; p < num_parameters_; ++p) {
    // This overwrites the counts of step - 2. Only a redo of step - 1 would read them, and each
    // rank that voted for this step has applied that one.
    const uint32_t before = At(step - 1, p).load(std::memory_order_relaxed);
    At(step, p).store(before + (touched[p] ? 1 : 0), std::memory_order_relaxed);
  }
}

std::vector<int64_t> UpdateCounts::Load(int64_t step) const {
  std::vector<int64_t> updates(num_parameters_);
  for (int p = 0; p < num_parameters_; ++p) {
    const uint32_t count = At(step, p).load(std::memory_order_relaxed);
    // Equal counts: the parameter had no update in this step.
    updates[p] = count == At(step - 1, p).load(std::memory_order_relaxed) ? 0 : count;
  }
  return updates;
}

void UpdateCounts::Set(int64_t step, const std::vector<int64_t>& counts) const {
  for (int p = 0; p < num_parameters_; ++p) At(step, p).store(counts[p], std::memory_order_relaxed);
}

std::array<uint64_t, 2> IdOf(GroupPage* group) {
  // The first word says that the second is valid: a process that died in between told nobody.
  if (group->id[0].load(std::memory_order_acquire) == 0) {
    // Only the executor of rank 0 asks, so no two processes choose at once (prior_attempt.cc).
    std::random_device random;
    const auto word = [&random] { return (uint64_t{random()} << 32) | random(); };
    group->id[1].store(word(), kRelaxed);
    // Never 0, which says that nothing was chosen.
    group->id[0].store(word() | 1, std::memory_order_release);
  }
  return {group->id[0].load(kRelaxed), group->id[1].load(kRelaxed)};
}

TrainingProgress LoadProgress(const GroupPage& group, const UpdateCounts& counts, int64_t step,
                              int num_groups) {
  TrainingProgress progress;
  const Decision& decision = group.decisions[step % 2];
  progress.step = decision.trained_step.load(std::memory_order_relaxed);
  for (int p = 0; p < counts.num_parameters(); ++p)
    progress.update_counts.push_back(counts.CountOf(step, p));
  progress.groups = LoadGroups(decision, num_groups);
  return progress;
}

void RecordInitialProgress(GroupPage* group, const UpdateCounts& counts,
                           const TrainingProgress& progress) {
  // Nothing publishes these by itself: readers acquire `initialized`, which is stored after a
  // barrier.
  counts.Set(0, progress.update_counts);
  group->decisions[0].trained_step.store(progress.step, std::memory_order_relaxed);
  StoreGroups(progress.groups, &group->decisions[0]);
}

void RecordDecision(GroupPage* group, UpdateCounts counts, int64_t step, const StepNumbers& numbers,
                    const std::vector<bool>& touched) {
  // Acquire: a rank that finds it decided sees all of the numbers.
  if (group->decided_step.load(std::memory_order_acquire) >= step) return;
  // From here on the slot of step - 2 is overwritten. A kill before the exchange below leaves the
  // step undecided on this host: the next attempt overwrites the slot again.
  if (numbers.loaded.has_value()) {
    counts.Set(step, numbers.loaded->update_counts);
  } else {
    counts.Record(step, touched);
  }
  Decision& decision = group->decisions[step % 2];
  decision.gradient_scale.store(numbers.gradient_scale, kRelaxed);
  decision.gradient_norm.store(numbers.gradient_norm, kRelaxed);
  decision.is_write.store(numbers.is_write ? 1 : 0, kRelaxed);
  decision.is_trainers_step.store(numbers.is_trainers_step ? 1 : 0, kRelaxed);
  decision.sets_moments.store(numbers.loaded.has_value() ? 1 : 0, kRelaxed);
  // Of the step before. Its slot is not written until the step after this one.
  const Decision& before_it = group->decisions[(step + 1) % 2];
  const bool counts_as_write = numbers.is_write && !numbers.is_trainers_step;
  // A put is not a write of a trainer: `writes` is what Session::num_writes tells them.
  const bool is_trainers_write = counts_as_write && numbers.put == 0;
  decision.writes.store(before_it.writes.load(kRelaxed) + (is_trainers_write ? 1 : 0), kRelaxed);
  decision.trained_step.store(numbers.loaded.has_value() ? numbers.loaded->step
                                                         : before_it.trained_step.load(kRelaxed) +
                                                               (counts_as_write ? 0 : 1),
                              kRelaxed);
  if (numbers.groups.empty()) {
    // A write has no hyper-parameters of its own, and the page does not know how many groups there
    // are.
    StoreGroups(LoadGroups(before_it, kMaxParamGroups), &decision);
  } else {
    StoreGroups(numbers.groups, &decision);
  }
  decision.put.store(numbers.put, kRelaxed);
  // Last, because this publishes the numbers above. Exchanged, because ranks record the same
  // decision at the same time, and a slow one must not set the step back.
  int64_t before = step - 1;
  group->decided_step.compare_exchange_strong(before, step, std::memory_order_acq_rel);
}

StepNumbers LoadDecision(const GroupPage& group, const UpdateCounts& counts, int64_t step,
                         int num_groups) {
  // The caller has acquired decided_step, so relaxed loads see what was stored before it.
  const Decision& decision = group.decisions[step % 2];
  StepNumbers numbers;
  numbers.gradient_scale = decision.gradient_scale.load(kRelaxed);
  numbers.gradient_norm = decision.gradient_norm.load(kRelaxed);
  numbers.is_write = decision.is_write.load(kRelaxed) != 0;
  numbers.is_trainers_step = decision.is_trainers_step.load(kRelaxed) != 0;
  numbers.writes = decision.writes.load(kRelaxed);
  numbers.put = decision.put.load(kRelaxed);
  if (decision.sets_moments.load(kRelaxed) != 0)
    numbers.loaded = LoadProgress(group, counts, step, num_groups);
  numbers.groups = LoadGroups(decision, num_groups);
  return numbers;
}

namespace {

// The fields of a decision, in an order of their own. F takes an atomic of four or eight bytes.
template <typename D, typename F>
void ForEachField(D& decision, int num_groups, F&& f) {
  f(decision.gradient_scale);
  f(decision.gradient_norm);
  for (int i = 0; i < num_groups; ++i) {
    auto& group = decision.groups[i];
    f(group.learning_rate), f(group.beta1), f(group.beta2), f(group.epsilon);
    f(group.weight_decay), f(group.momentum);
  }
  f(decision.is_write), f(decision.is_trainers_step), f(decision.sets_moments);
  f(decision.writes), f(decision.trained_step), f(decision.put);
}

template <typename T>
uint64_t WordOf(const std::atomic<T>& field) {
  const T value = field.load(kRelaxed);
  uint64_t word = 0;
  memcpy(&word, &value, sizeof(value));
  return word;
}

template <typename T>
void StoreWord(uint64_t word, std::atomic<T>* field) {
  T value;
  memcpy(&value, &word, sizeof(value));
  field->store(value, kRelaxed);
}

constexpr int kStepWord = 0, kInitializedWord = 1, kFirstPutWord = 2, kDecisionWord = 5;

}  // namespace

int64_t HostProgressWords(int num_groups, int num_parameters) {
  int64_t fields = 0;
  Decision decision;
  ForEachField(decision, num_groups, [&](auto&) { ++fields; });
  return kDecisionWord + fields + 2 * num_parameters;
}

void SaveHostProgress(const GroupPage& group, const UpdateCounts& counts, int64_t step,
                      int num_groups, absl::Span<uint64_t> words) {
  words[kStepWord] = static_cast<uint64_t>(step);
  words[kInitializedWord] = group.initialized.load(std::memory_order_acquire);
  words[kFirstPutWord] = WordOf(group.put);
  words[kFirstPutWord + 1] = WordOf(group.put_step);
  words[kFirstPutWord + 2] = WordOf(group.put_trained_step);
  size_t at = kDecisionWord;
  ForEachField(group.decisions[step % 2], num_groups,
               [&](const auto& field) { words[at++] = WordOf(field); });
  for (int i = 0; i < 2 * counts.num_parameters(); ++i) words[at++] = WordOf(counts.Word(i));
}

absl::Status CheckHostProgress(absl::Span<const uint64_t> words, int64_t step, int num_groups) {
  // The words come from another host: an older step's would undo one that this host may have
  // decided.
  if (words[kStepWord] != static_cast<uint64_t>(step)) {
    return absl::DataLossError(
        absl::StrCat("the received values are of step ", words[kStepWord], ", not ", step));
  }
  Decision decision;
  size_t at = kDecisionWord;
  // Into a decision of its own: nothing reaches the page before all of it was checked.
  ForEachField(decision, num_groups, [&](auto& field) { StoreWord(words[at++], &field); });
  const double scale = decision.gradient_scale.load(kRelaxed);
  // Not a number is refused too.
  if (!(scale >= 0) || std::isinf(scale) || !(decision.gradient_norm.load(kRelaxed) >= 0) ||
      decision.writes.load(kRelaxed) < 0 || decision.trained_step.load(kRelaxed) < 0) {
    return absl::DataLossError("the received values have numbers that no step has");
  }
  if (!IsInitialized(words)) return absl::OkStatus();  // There are no groups yet.
  // They end up in each rank's update, as those of a trainer's step do.
  const std::vector<HyperParameters> groups = LoadGroups(decision, num_groups);
  for (int i = 0; i < num_groups; ++i) {
    const absl::Status valid = ValidateHyperParameters(groups[i], i);
    if (!valid.ok())
      return absl::DataLossError(absl::StrCat("the received values: ", valid.message()));
  }
  return absl::OkStatus();
}

bool IsInitialized(absl::Span<const uint64_t> words) { return words[kInitializedWord] != 0; }

void RestoreHostProgress(absl::Span<const uint64_t> words, GroupPage* group,
                         const UpdateCounts& counts, int num_groups) {
  const auto step = static_cast<int64_t>(words[kStepWord]);
  size_t at = kDecisionWord;
  ForEachField(group->decisions[step % 2], num_groups,
               [&](auto& field) { StoreWord(words[at++], &field); });
  for (int i = 0; i < 2 * counts.num_parameters(); ++i) StoreWord(words[at++], &counts.Word(i));
  StoreWord(words[kFirstPutWord + 1], &group->put_step);
  StoreWord(words[kFirstPutWord + 2], &group->put_trained_step);
  // Release: FindPut reads the two words above once it sees this one.
  group->put.store(words[kFirstPutWord], std::memory_order_release);
  const uint64_t decided_put = group->decisions[step % 2].put.load(kRelaxed);
  if (decided_put != 0) RememberPut(group, decided_put, step);
  // From here on this host counts as having decided the step.
  group->decided_step.store(step, std::memory_order_release);
  group->initialized.store(static_cast<uint32_t>(words[kInitializedWord]),
                           std::memory_order_release);
}

void RememberPut(GroupPage* group, uint64_t put, int64_t step) {
  // `put` last: it publishes the two numbers.
  group->put_step.store(step, kRelaxed);
  group->put_trained_step.store(group->decisions[step % 2].trained_step.load(kRelaxed), kRelaxed);
  group->put.store(put, std::memory_order_release);
}

std::optional<DecidedPut> FindPut(const GroupPage& group, uint64_t put) {
  // The two slots take turns, so a decision may be overwritten while it is read. Only two steps on,
  // which the second look at decided_step shows.
  while (true) {
    const int64_t decided = group.decided_step.load(std::memory_order_acquire);
    const Decision& decision = group.decisions[decided % 2];
    const bool is_last = decision.put.load(kRelaxed) == put;
    const DecidedPut last = {decided, decision.trained_step.load(kRelaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (group.decided_step.load(kRelaxed) != decided) continue;  // The fields may be newer.
    if (is_last) return last;
    if (group.put.load(std::memory_order_acquire) != put) return std::nullopt;
    // Stored before `put`, which the acquire above has seen.
    return DecidedPut{group.put_step.load(kRelaxed), group.put_trained_step.load(kRelaxed)};
  }
}

void PublishApplied(GroupPage* group, int rank, int64_t step) {
  RankRecord& record = group->ranks[rank];
  // Before the version word, on which peers wait.
  record.applied_step.store(step, std::memory_order_release);
  // A kill between the two leaves a whole shard that does not count as published: the successor
  // publishes it again (StateVersions::PublishIfNot).
  Publish(&record.applied_version, static_cast<uint32_t>(step));
}

void UnpublishApplied(GroupPage* group, int rank) {
  RankRecord& record = group->ranks[rank];
  const int64_t before = record.applied_step.load(kRelaxed) - 1;
  // Only the word goes back. The shard stays valid, and its applied_step with it.
  Publish(&record.applied_version, static_cast<uint32_t>(before));
}

bool IsPublished(const GroupPage& group, int rank) {
  const RankRecord& record = group.ranks[rank];
  return record.applied_version.value.load(std::memory_order_acquire) ==
         static_cast<uint32_t>(record.applied_step.load(std::memory_order_acquire));
}

}  // namespace tessera
