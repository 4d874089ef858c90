// A Journal in one SQLite file. The format is described in docs/formats/journal.md.
//
// Write-ahead logging; a batch is one transaction, synced to the disk for Durability::kPowerLoss.
// The file is held exclusively: a second coordinator on it is refused. Not thread-safe.
#ifndef TESSERA_COORDINATOR_STORAGE_SQLITE_JOURNAL_H_
#define TESSERA_COORDINATOR_STORAGE_SQLITE_JOURNAL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/storage/journal.h"

struct sqlite3;
struct sqlite3_stmt;

namespace tessera::coordinator {

class SqliteJournal : public Journal {
 public:
  // The version of the table and of the rows' encoding that this program writes and reads.
  static constexpr int kSchemaVersion = 1;

  struct Options {
    std::string path;       // Made where it does not exist; its folder must exist.
    int64_t max_pages = 0;  // Of 4 KiB; 0: unlimited. A larger file reads as a full disk.
  };

  // Errors: FailedPrecondition  written by a newer version (names both); held by another process;
  //                             a SQLite file of some other program
  //         InvalidArgument     the path is a folder
  //         PermissionDenied    the path cannot be opened for writing
  //         DataLoss            not a SQLite file, or a damaged one
  //         ResourceExhausted   no room on the disk
  static absl::StatusOr<std::unique_ptr<SqliteJournal>> Open(const Options& options);

  ~SqliteJournal() override = default;

  absl::Status Append(absl::Span<const JournalChange> batch, Durability durability) override;
  absl::StatusOr<std::vector<JournalRow>> ReadAll() override;

 private:
  struct CloseDb {
    void operator()(sqlite3* db) const;
  };
  struct FinalizeStatement {
    void operator()(sqlite3_stmt* statement) const;
  };
  using Db = std::unique_ptr<sqlite3, CloseDb>;
  using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

  SqliteJournal(std::string path, Db db) : path_(std::move(path)), db_(std::move(db)) {}

  absl::Status Initialize(const Options& options);
  absl::Status CheckOwnership();
  absl::Status Execute(const std::string& sql);
  absl::StatusOr<int64_t> QueryInt(const std::string& sql);
  absl::StatusOr<Statement> Prepare(const std::string& sql);
  absl::Status Apply(const JournalChange& change);
  absl::Status SetDurability(Durability durability);
  absl::Status Error(int code, absl::string_view doing) const;

  std::string path_;
  Db db_;
  Statement put_;
  Statement delete_;
  Statement delete_range_;
  Durability durability_ = Durability::kPowerLoss;
};

// The checksum kept beside each row: FNV-1a, 64 bits, over key, a zero byte, and value.
uint64_t RowChecksum(absl::string_view key, absl::string_view value);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_STORAGE_SQLITE_JOURNAL_H_
