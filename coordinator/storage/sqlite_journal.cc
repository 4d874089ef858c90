#include "coordinator/storage/sqlite_journal.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"

namespace tessera::coordinator {
namespace {

// "TSRJ": marks the file as a Tessera journal (SQLite's application_id).
constexpr int64_t kApplicationId = 0x5453524A;

absl::StatusCode CodeOf(int sqlite_code) {
  switch (sqlite_code & 0xff) {
    case SQLITE_FULL:
    case SQLITE_NOMEM:
      return absl::StatusCode::kResourceExhausted;
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return absl::StatusCode::kPermissionDenied;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::StatusCode::kDataLoss;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

uint64_t RowChecksum(absl::string_view key, absl::string_view value) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto mix = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3u; };
  for (const char c : key) mix(c);
  mix(0);
  for (const char c : value) mix(c);
  return hash;
}

void SqliteJournal::CloseDb::operator()(sqlite3* db) const { sqlite3_close_v2(db); }
void SqliteJournal::FinalizeStatement::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

absl::Status SqliteJournal::Error(int code, absl::string_view doing) const {
  std::string detail = sqlite3_errmsg(db_.get());
  if ((code & 0xff) == SQLITE_BUSY) detail = "another process holds the journal";
  return absl::Status(CodeOf(code), absl::StrCat("journal '", path_, "': ", doing, ": ", detail));
}

absl::StatusOr<std::unique_ptr<SqliteJournal>> SqliteJournal::Open(const Options& options) {
  struct stat info = {};
  if (stat(options.path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("journal '", options.path, "': is a folder; a file is needed"));
  }
  sqlite3* raw = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(options.path.c_str(), &raw, flags, nullptr);
  std::unique_ptr<SqliteJournal> journal(new SqliteJournal(options.path, Db(raw)));
  if (code != SQLITE_OK) return journal->Error(code, "open");
  if (sqlite3_db_readonly(raw, "main") == 1) {
    return absl::PermissionDeniedError(
        absl::StrCat("journal '", options.path, "': open: the file is not writable"));
  }
  RETURN_IF_ERROR(journal->Initialize(options));
  return journal;
}

absl::Status SqliteJournal::Initialize(const Options& options) {
  sqlite3_extended_result_codes(db_.get(), 1);
  sqlite3_busy_timeout(db_.get(), 0);
  RETURN_IF_ERROR(CheckOwnership());  // Before anything is written.
  RETURN_IF_ERROR(Execute("PRAGMA locking_mode=EXCLUSIVE"));
  RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
  RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
  RETURN_IF_ERROR(Execute(absl::StrCat(
      "BEGIN IMMEDIATE; PRAGMA application_id=", kApplicationId,
      "; PRAGMA user_version=", kSchemaVersion,
      "; CREATE TABLE IF NOT EXISTS rows(key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL, "
      "checksum INTEGER NOT NULL) WITHOUT ROWID; COMMIT")));
  if (options.max_pages > 0) {
    RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA max_page_count=", options.max_pages)));
  }
  ASSIGN_OR_RETURN(put_, Prepare("INSERT OR REPLACE INTO rows VALUES(?1, ?2, ?3)"));
  ASSIGN_OR_RETURN(delete_, Prepare("DELETE FROM rows WHERE key = ?1"));
  ASSIGN_OR_RETURN(delete_range_, Prepare("DELETE FROM rows WHERE key >= ?1 AND key < ?2"));
  return absl::OkStatus();
}

absl::Status SqliteJournal::CheckOwnership() {
  ASSIGN_OR_RETURN(const int64_t num_tables, QueryInt("SELECT count(*) FROM sqlite_master"));
  ASSIGN_OR_RETURN(const int64_t application_id, QueryInt("PRAGMA application_id"));
  ASSIGN_OR_RETURN(const int64_t version, QueryInt("PRAGMA user_version"));
  if (application_id != kApplicationId && (num_tables > 0 || application_id != 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat("journal '", path_, "': the file belongs to another program"));
  }
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("journal '", path_, "': written in version ", version,
                     "; this program reads up to version ", kSchemaVersion));
  }
  return absl::OkStatus();
}

absl::Status SqliteJournal::Execute(const std::string& sql) {
  const int code = sqlite3_exec(db_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code, sql.substr(0, sql.find(' ', 12)));
}

absl::StatusOr<SqliteJournal::Statement> SqliteJournal::Prepare(const std::string& sql) {
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v2(db_.get(), sql.c_str(), -1, &raw, nullptr);
  if (code != SQLITE_OK) return Error(code, "prepare");
  return Statement(raw);
}

absl::StatusOr<int64_t> SqliteJournal::QueryInt(const std::string& sql) {
  ASSIGN_OR_RETURN(const Statement statement, Prepare(sql));
  const int code = sqlite3_step(statement.get());
  if (code != SQLITE_ROW) return Error(code, "read");
  return sqlite3_column_int64(statement.get(), 0);
}

absl::Status SqliteJournal::SetDurability(Durability durability) {
  if (durability == durability_) return absl::OkStatus();
  RETURN_IF_ERROR(Execute(durability == Durability::kPowerLoss ? "PRAGMA synchronous=FULL"
                                                               : "PRAGMA synchronous=NORMAL"));
  durability_ = durability;
  return absl::OkStatus();
}

absl::Status SqliteJournal::Append(absl::Span<const JournalChange> batch, Durability durability) {
  RETURN_IF_ERROR(FaultPoint("journal.sqlite.append"));
  RETURN_IF_ERROR(SetDurability(durability));
  RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  absl::Cleanup rollback = [this] {
    if (sqlite3_get_autocommit(db_.get()) == 0) Execute("ROLLBACK").IgnoreError();
  };
  for (const JournalChange& change : batch) RETURN_IF_ERROR(Apply(change));
  return Execute("COMMIT");
}

absl::Status SqliteJournal::Apply(const JournalChange& change) {
  sqlite3_stmt* statement = delete_.get();
  if (change.kind == JournalChange::Kind::kPut) statement = put_.get();
  if (change.kind == JournalChange::Kind::kDeletePrefix) statement = delete_range_.get();
  absl::Cleanup reset = [statement] { sqlite3_reset(statement); };
  sqlite3_bind_text(statement, 1, change.key.data(), change.key.size(), SQLITE_STATIC);
  std::string end = change.key;  // The first key after all that begin with the prefix.
  if (change.kind == JournalChange::Kind::kPut) {
    sqlite3_bind_blob64(statement, 2, change.value.data() != nullptr ? change.value.data() : "",
                        change.value.size(), SQLITE_STATIC);
    sqlite3_bind_int64(statement, 3, RowChecksum(change.key, change.value));
  } else if (change.kind == JournalChange::Kind::kDeletePrefix) {
    ++end.back();  // Keys are ASCII, so this does not overflow.
    sqlite3_bind_text(statement, 2, end.data(), end.size(), SQLITE_STATIC);
  }
  const int code = sqlite3_step(statement);
  return code == SQLITE_DONE ? absl::OkStatus() : Error(code, "write");
}

absl::StatusOr<std::vector<JournalRow>> SqliteJournal::ReadAll() {
  ASSIGN_OR_RETURN(const Statement statement,
                   Prepare("SELECT key, value, checksum FROM rows ORDER BY key"));
  std::vector<JournalRow> rows;
  int code = SQLITE_OK;
  while ((code = sqlite3_step(statement.get())) == SQLITE_ROW) {
    const auto bytes = [&](int column) {
      const auto* data = static_cast<const char*>(sqlite3_column_blob(statement.get(), column));
      return std::string(data == nullptr ? "" : data,
                         sqlite3_column_bytes(statement.get(), column));
    };
    JournalRow row{bytes(0), bytes(1)};
    const auto checksum = static_cast<uint64_t>(sqlite3_column_int64(statement.get(), 2));
    if (checksum != RowChecksum(row.key, row.value)) {
      return absl::DataLossError(absl::StrCat("journal '", path_, "': record '", row.key,
                                              "' is damaged: its checksum does not match"));
    }
    rows.push_back(std::move(row));
  }
  if (code != SQLITE_DONE) return Error(code, "read");
  return rows;
}

}  // namespace tessera::coordinator
