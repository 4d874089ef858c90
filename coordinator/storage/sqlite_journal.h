// A Journal in one SQLite file. The format is described in docs/formats/journal.md.
//
// Write-ahead logging; a batch is one transaction, synced to the disk for Durability::kPowerLoss.
// The file is locked exclusively: another coordinator that opens it is refused, and so is a second
// open in this process. Disk space for
// some changes is reserved, so that a full disk stops no job. Not thread-safe.
#ifndef TESSERA_COORDINATOR_STORAGE_SQLITE_JOURNAL_H_
#define TESSERA_COORDINATOR_STORAGE_SQLITE_JOURNAL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/storage/journal.h"
#include "coordinator/storage/journal_witness.h"

struct sqlite3;
struct sqlite3_stmt;

namespace tessera::coordinator {

class SqliteJournal : public Journal {
 public:
  // The version of the table and of the rows' encoding that this program writes and reads.
  static constexpr int kSchemaVersion = 2;

  struct Options {
    std::string path;       // Created if missing; its folder must exist.
    int64_t max_pages = 0;  // 0: unlimited. Appends beyond it fail as on a full disk.
    int page_bytes = 4096;  // Of a new file.
    bool sets_room_aside = true;
  };

  // Errors: FailedPrecondition  written by a newer version (names both); open in another process, or
  //                             in this one already; a SQLite file of some other program
  //         InvalidArgument     the path is a folder
  //         PermissionDenied    the path cannot be opened for writing
  //         DataLoss            not a SQLite file, a damaged one, or one that has lost its last
  //                             changes
  //         ResourceExhausted   no room on the disk
  static absl::StatusOr<std::unique_ptr<SqliteJournal>> Open(const Options& options);

  ~SqliteJournal() override;

  absl::Status Append(absl::Span<const JournalChange> batch, Durability durability) override;
  absl::StatusOr<std::vector<JournalRow>> ReadAll() override;
  int64_t num_changes() const override { return number_; }

 private:
  struct CloseDb {
    void operator()(sqlite3* db) const;
  };
  struct FinalizeStatement {
    void operator()(sqlite3_stmt* statement) const;
  };
  using Db = std::unique_ptr<sqlite3, CloseDb>;
  using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

  explicit SqliteJournal(std::string path) : path_(std::move(path)) {}

  absl::Status OpenFile(const Options& options);
  absl::Status Initialize(const Options& options);
  // Whether the file has tables already. Errors: FailedPrecondition  as Open.
  absl::StatusOr<bool> CheckOwnership();
  absl::Status CreateTables();
  absl::Status ReadHead();
  // The sum over the rows that a bound statement selects.
  absl::StatusOr<uint64_t> SumOfChecksums(sqlite3_stmt* statement);
  absl::Status Execute(const std::string& sql);
  absl::StatusOr<int64_t> QueryInt(const std::string& sql);
  absl::StatusOr<Statement> Prepare(const std::string& sql);
  // Updates `digest` by the change.
  absl::Status Apply(const JournalChange& change, uint64_t* digest);
  absl::Status SetDurability(Durability durability);
  absl::Status Error(int code, absl::string_view doing) const;

  std::string path_;
  // As the kernel names it; set while it counts as open in this process.
  std::optional<std::pair<uint64_t, uint64_t>> file_;
  Db db_;
  Statement put_;
  Statement delete_;
  Statement delete_range_;
  Statement select_;
  Statement select_range_;
  Statement set_head_;
  int64_t log_bytes_ = 0;  // Reserved for the log.
  int64_t number_ = 0;     // The kPowerLoss batches in this file.
  uint64_t digest_ = 0;    // The sum of all rows' checksums.
  JournalWitness witness_;
  Durability durability_ = Durability::kPowerLoss;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_STORAGE_SQLITE_JOURNAL_H_
