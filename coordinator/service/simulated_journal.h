// A coordinator's journal in a simulation. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_JOURNAL_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_JOURNAL_H_

#include <optional>
#include <vector>

#include "base/status_macros.h"
#include "coordinator/storage/memory_journal.h"

namespace tessera::coordinator {

class SimulatedJournal : public Journal {
 public:
  absl::Status Append(absl::Span<const JournalChange> batch, Durability durability) override {
    unsynced_.insert(unsynced_.end(), batch.begin(), batch.end());
    if (durability == Durability::kPowerLoss) {
      RETURN_IF_ERROR(synced_.Append(unsynced_, durability));
      unsynced_.clear();
    }
    return rows_.Append(batch, durability);
  }
  absl::StatusOr<std::vector<JournalRow>> ReadAll() override { return rows_.ReadAll(); }
  int64_t num_changes() const override { return rows_.num_changes(); }

  // The machine loses its power: what was to outlive no more than the process is gone.
  void LosePower() {
    rows_ = synced_;
    unsynced_.clear();
  }

  // Somebody copies its files; and later puts the copy back.
  void Copy() { copy_ = synced_; }
  bool has_copy() const { return copy_.has_value(); }
  void RestoreCopy() {
    rows_ = synced_ = *copy_;
    unsynced_.clear();
    copy_.reset();
  }

 private:
  MemoryJournal rows_;
  MemoryJournal synced_;
  std::optional<MemoryJournal> copy_;
  std::vector<JournalChange> unsynced_;  // What `rows_` has and `synced_` has not.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_JOURNAL_H_
