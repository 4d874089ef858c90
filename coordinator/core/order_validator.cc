#include "coordinator/core/order_validator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace tessera::coordinator {

std::string DescribeEntry(const OrderEntry& entry, const JobSpec& spec) {
  const std::string shape =
      absl::StrCat(Name(entry.dtype), ", ", entry.count_elements, " elements");
  const int64_t unit_index = entry.unit.value();
  if (unit_index < 0 || unit_index >= static_cast<int64_t>(spec.model.units.size())) {
    return entry.count_elements == 0 ? entry.operation
                                     : absl::StrCat(entry.operation, " (", shape, ")");
  }
  const UnitSpec& unit = spec.model.units[unit_index];
  constexpr size_t kNamed = 3;
  std::vector<absl::string_view> names;
  for (size_t i = 0; i < unit.parameters.size() && i < kNamed; ++i) {
    names.push_back(unit.parameters[i].name);
  }
  std::string parameters = absl::StrJoin(names, ", ");
  if (unit.parameters.size() > kNamed) {
    absl::StrAppend(&parameters, " and ", unit.parameters.size() - kNamed, " more");
  }
  return absl::StrCat(entry.operation, " unit '", unit.name, "' (parameters ", parameters, "; ",
                      shape, ")");
}

OrderValidator::OrderValidator(int32_t world_size, JobSpecPtr spec)
    : world_size_(world_size), spec_(std::move(spec)), progress_(world_size) {}

void OrderValidator::Restore(const OrderPosition& position, const OrderEntry& entry) {
  if (position.sequence >= num_recorded()) record_.resize(position.sequence + 1);
  record_[position.sequence] = Recorded{position, entry};
  recorded_at_ = std::max(recorded_at_, position);
}

void OrderValidator::FinishRestore() {
  // Entries after the last one of the newest pass remain from an earlier, longer order.
  while (!record_.empty() && !(record_.back() && record_.back()->at.InPassOf(recorded_at_))) {
    record_.pop_back();
  }
}

const OrderValidator::Recorded* OrderValidator::RecordAt(int64_t sequence) const {
  if (sequence >= num_recorded() || !record_[sequence].has_value()) return nullptr;
  return &*record_[sequence];
}

const OrderEntry* OrderValidator::EntryAt(const OrderPosition& position) const {
  const auto announced = pending_.find(position);
  if (announced != pending_.end()) return &announced->second.begin()->second;
  const Recorded* recorded = RecordAt(position.sequence);
  return recorded == nullptr ? nullptr : &recorded->entry;
}

void OrderValidator::Withdraw(Rank rank) {
  auto waiting = waiting_at_.find(rank);
  if (waiting == waiting_at_.end()) return;
  auto announced = pending_.find(waiting->second);
  announced->second.erase(rank);
  if (announced->second.empty()) pending_.erase(announced);
  waiting_at_.erase(waiting);
}

OrderVerdict OrderValidator::Announce(Rank rank, const OrderPosition& position,
                                      const OrderEntry& entry) {
  // The caller has refused what a worker could send beyond these bounds.
  TESSERA_CHECK(rank.value() >= 0 && rank.value() < world_size_);
  TESSERA_CHECK(position.sequence >= 0 && position.sequence < kMaxSequence);
  return Latched([&] { return DoAnnounce(rank, position, entry); });
}

OrderVerdict OrderValidator::Progress(Rank rank, const OrderPosition& position) {
  return Latched([&] { return DoProgress(rank, position); });
}

OrderVerdict OrderValidator::Latched(absl::FunctionRef<OrderVerdict()> judge) {
  // A mismatch ends the epoch. What ranks announce until then follows from it and is not judged.
  if (mismatch_.has_value()) return *mismatch_;
  OrderVerdict verdict = judge();
  if (verdict.mismatch.has_value()) mismatch_ = verdict;
  return verdict;
}

OrderVerdict OrderValidator::DoAnnounce(Rank rank, const OrderPosition& position,
                                        const OrderEntry& entry) {
  // A rank waits at one position at a time, so this replaces its last announcement.
  Withdraw(rank);
  const Recorded* recorded = RecordAt(position.sequence);
  // Ranks that wait here deviate from the record, so this rank is compared with them instead.
  const bool is_new = pending_.count(position) == 0;
  if (recorded != nullptr && recorded->entry == entry && is_new) {
    // It follows the record, or it repeats an announcement whose release was lost.
    OrderVerdict verdict = DoProgress(rank, position);
    if (!verdict.mismatch) {
      verdict.released = {rank};
      verdict.position = position;
    }
    return verdict;
  }
  // All ranks agreed on this position in this very pass, so this cannot be a new order.
  if (recorded != nullptr && recorded->at.InPassOf(position) && recorded->entry != entry) {
    // The other ranks all agreed, so any one of them can be named.
    const Rank other(rank.value() == 0 && world_size_ > 1 ? 1 : 0);
    return Mismatch(position, rank, absl::StrCat("is about to ", DescribeEntry(entry, *spec_)),
                    other,
                    absl::StrCat("agreed with all to ", DescribeEntry(recorded->entry, *spec_)));
  }
  Announced& announced = pending_[position];
  announced.emplace(rank, entry);
  waiting_at_[rank] = position;
  for (const auto& [other, other_entry] : {*announced.begin(), *announced.rbegin()}) {
    // The earlier entries are all equal, so the first or the last one stands for them.
    if (other_entry == entry) continue;
    return Mismatch(position, other,
                    absl::StrCat("is about to ", DescribeEntry(other_entry, *spec_)), rank,
                    absl::StrCat("is about to ", DescribeEntry(entry, *spec_)));
  }
  if (static_cast<int64_t>(announced.size()) == world_size_) return Agree(position);
  // A rank that followed its record past this position will never announce it.
  if (is_new) {
    for (int64_t other = 0; other < world_size_; ++other) {
      OrderVerdict verdict = CheckPassed(Rank(other), position);
      if (verdict.mismatch) return verdict;
    }
  }
  return DoProgress(rank, position);
}

OrderVerdict OrderValidator::Agree(const OrderPosition& position) {
  OrderVerdict verdict;
  verdict.position = position;
  const Announced announced = std::move(pending_[position]);
  pending_.erase(position);
  for (const auto& [rank, entry] : announced) {
    waiting_at_.erase(rank);
    verdict.released.push_back(rank);
    progress_[rank.value()] = std::max(progress_[rank.value()], position);
  }
  verdict.recorded = announced.begin()->second;
  record_.resize(position.sequence + 1);  // Entries after it are void.
  record_[position.sequence] = Recorded{position, *verdict.recorded};
  recorded_at_ = position;
  return verdict;
}

OrderVerdict OrderValidator::DoProgress(Rank rank, const OrderPosition& position) {
  OrderPosition& progress = progress_[rank.value()];
  // Reports may be late, and progress never goes back.
  if (!(progress < position)) return {};
  progress = position;
  for (auto it = pending_.begin(); it != pending_.end() && it->first < progress; ++it) {
    OrderVerdict verdict = CheckPassed(rank, it->first);
    if (verdict.mismatch) return verdict;
  }
  return {};
}

OrderVerdict OrderValidator::Finished(Rank rank, Step step) {
  return Progress(rank, {Step(step.value() + 1), 0});
}

OrderVerdict OrderValidator::CheckPassed(Rank rank, const OrderPosition& position) const {
  auto it = pending_.find(position);
  if (it == pending_.end() || it->second.count(rank) > 0) return {};
  if (!(position < progress_[rank.value()])) return {};
  const auto& [announcer, entry] = *it->second.begin();
  return Mismatch(position, announcer, absl::StrCat("is about to ", DescribeEntry(entry, *spec_)),
                  rank, WhatRankDid(position));
}

std::string OrderValidator::WhatRankDid(const OrderPosition& position) const {
  if (const Recorded* recorded = RecordAt(position.sequence)) {
    return absl::StrCat("followed its recorded order: ", DescribeEntry(recorded->entry, *spec_));
  }
  if (position.sequence >= num_recorded()) {
    return absl::StrCat("ended its step after ", num_recorded(), " operations");
  }
  return "went past that position";
}

OrderVerdict OrderValidator::Mismatch(const OrderPosition& position, Rank a,
                                      const std::string& what_a, Rank b,
                                      const std::string& what_b) const {
  OrderVerdict verdict;
  verdict.position = position;
  verdict.mismatch = absl::StrCat(
      "the ranks' execution orders differ at step ", position.step.value(),
      position.pass == 0 ? "" : absl::StrCat(", pass ", position.pass), ", position ",
      position.sequence, ": rank ", a.value(), " ", what_a, ", rank ", b.value(), " ", what_b);
  return verdict;
}

}  // namespace tessera::coordinator
