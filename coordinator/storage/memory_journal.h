// A Journal in memory, for tests and for coordinators whose state need not survive them. Not
// thread-safe.
#ifndef TESSERA_COORDINATOR_STORAGE_MEMORY_JOURNAL_H_
#define TESSERA_COORDINATOR_STORAGE_MEMORY_JOURNAL_H_

#include <map>
#include <string>
#include <vector>

#include "coordinator/storage/journal.h"

namespace tessera::coordinator {

class MemoryJournal : public Journal {
 public:
  absl::Status Append(absl::Span<const JournalChange> batch, Durability durability) override;
  absl::StatusOr<std::vector<JournalRow>> ReadAll() override;
  int64_t num_changes() const override { return num_changes_; }

 private:
  int64_t num_changes_ = 0;
  std::map<std::string, std::string> rows_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_STORAGE_MEMORY_JOURNAL_H_
