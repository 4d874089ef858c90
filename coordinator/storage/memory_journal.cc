#include "coordinator/storage/memory_journal.h"

#include "absl/strings/match.h"

namespace tessera::coordinator {

absl::Status MemoryJournal::Append(absl::Span<const JournalChange> batch, Durability durability) {
  for (const JournalChange& change : batch) {
    switch (change.kind) {
      case JournalChange::Kind::kPut:
        rows_[change.key] = change.value;
        break;
      case JournalChange::Kind::kDelete:
        rows_.erase(change.key);
        break;
      case JournalChange::Kind::kDeletePrefix:
        for (auto it = rows_.lower_bound(change.key);
             it != rows_.end() && absl::StartsWith(it->first, change.key);) {
          it = rows_.erase(it);
        }
        break;
    }
  }
  if (durability == Durability::kPowerLoss) ++num_changes_;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<JournalRow>> MemoryJournal::ReadAll() {
  std::vector<JournalRow> rows;
  for (const auto& [key, value] : rows_) rows.push_back({key, value});
  return rows;
}

}  // namespace tessera::coordinator
