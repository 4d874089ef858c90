#include "coordinator/storage/sqlite_journal.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "coordinator/storage/row_checksum.h"

namespace tessera::coordinator {
namespace {

// "TSRJ": marks the file as a Tessera journal (SQLite's application_id).
constexpr int64_t kApplicationId = 0x5453524A;

// The suffix of the file next to the journal, like SQLite's own "-wal".
constexpr char kWitnessSuffix[] = "-head";

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

// The bytes of an application_id in the file's header.
constexpr char kApplicationMark[] = "TSRJ";
constexpr off_t kApplicationMarkOffset = 68;

// The disk space that a journal with pages of this size needs on a full disk: the longest log that
// SQLite writes, and some new pages.
constexpr int64_t kLogPages = 1064;
constexpr int64_t kLogHeaderBytes = 24;  // Of each.
constexpr int64_t kMorePages = 256;

bool IsOurs(int fd) {
  char mark[sizeof(kApplicationMark) - 1];
  const ssize_t size = pread(fd, mark, sizeof(mark), kApplicationMarkOffset);
  return size == 0 || absl::string_view(mark, std::max<ssize_t>(size, 0)) == kApplicationMark;
}

// Reserves disk space of `size_bytes` for this file and keeps its size. If that fails, nothing else
// is different. A missing file is created, for this user only.
void SetAside(const std::string& path, int64_t size_bytes) {
  // O_NONBLOCK, because opening a pipe would wait for its other end.
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600));
  struct stat info = {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return;
  if (fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, size_bytes) != 0 && errno == ENOSPC) {
    TESSERA_LOG(WARNING,
                "no room on the disk to reserve {} bytes for '{}': while it is full, nothing that "
                "needs the journal can happen",
                size_bytes, path);
  }
}

// Reserves space for the log, which gets the journal's owner and mode, as from SQLite.
void SetLogAside(const std::string& path, int64_t size_bytes) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return;  // It was moved away.
  const std::string log = path + "-wal";
  SetAside(log, size_bytes);
  if (chmod(log.c_str(), info.st_mode & 0777) != 0 || geteuid() != 0) return;
  (void)!chown(log.c_str(), info.st_uid, info.st_gid);
}

// Reserves space for the journal itself, before SQLite opens it: SQLite's locks belong to this
// process, and closing any descriptor of the file drops them.
void SetPagesAside(const std::string& path, int page_bytes) {
  struct stat info = {};
  if (stat(path.c_str(), &info) == 0) {
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid() || !IsOurs(fd.get())) return;
  }
  SetAside(path, info.st_size + kMorePages * page_bytes);
}

// The journals that this process has open. SQLite's locks refuse only other processes, and this one
// loses them when it closes any descriptor of the file, as a second Open would.
ABSL_CONST_INIT absl::Mutex open_mu(absl::kConstInit);

std::set<std::pair<uint64_t, uint64_t>>& OpenFiles() ABSL_EXCLUSIVE_LOCKS_REQUIRED(open_mu) {
  static auto* const files = new std::set<std::pair<uint64_t, uint64_t>>();
  return *files;
}

uint64_t HeadChecksum(int64_t number, uint64_t digest) {
  return RowChecksum("head", absl::StrCat(number, " ", digest));
}

}  // namespace

void SqliteJournal::CloseDb::operator()(sqlite3* db) const { sqlite3_close_v2(db); }
void SqliteJournal::FinalizeStatement::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

SqliteJournal::~SqliteJournal() {
  // First, because SQLite keeps the file open until its last statement is gone.
  for (Statement* statement :
       {&put_, &delete_, &delete_range_, &select_, &select_range_, &set_head_})
    statement->reset();
  db_.reset();
  if (file_.has_value()) {
    absl::MutexLock lock(&open_mu);
    OpenFiles().erase(*file_);
  }
  // SQLite has removed the log, and with it the space that the next start may need.
  if (log_bytes_ > 0) SetLogAside(path_, log_bytes_);
}

absl::Status SqliteJournal::Error(int code, absl::string_view doing) const {
  std::string detail = sqlite3_errmsg(db_.get());
  if ((code & 0xff) == SQLITE_BUSY) detail = "another process holds the journal";
  return absl::Status(CodeOf(code), absl::StrCat("journal '", path_, "': ", doing, ": ", detail));
}

absl::StatusOr<std::unique_ptr<SqliteJournal>> SqliteJournal::Open(const Options& options) {
  std::unique_ptr<SqliteJournal> journal(new SqliteJournal(options.path));
  RETURN_IF_ERROR(journal->OpenFile(options));
  RETURN_IF_ERROR(journal->Initialize(options));
  return journal;
}

absl::Status SqliteJournal::OpenFile(const Options& options) {
  // Held to the end, so that of two threads that open the file one is refused.
  absl::MutexLock lock(&open_mu);
  struct stat info = {};
  if (stat(path_.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat("journal '", path_, "': is a folder; a file is needed"));
    }
    if (OpenFiles().count({info.st_dev, info.st_ino}) > 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("journal '", path_, "': this process has it open already"));
    }
  }
  if (options.sets_room_aside) SetPagesAside(path_, options.page_bytes);
  sqlite3* raw = nullptr;
  // NOMUTEX, because the journal has one caller at a time.
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(path_.c_str(), &raw, flags, nullptr);
  db_ = Db(raw);
  if (code != SQLITE_OK) return Error(code, "open");
  if (sqlite3_db_readonly(raw, "main") == 1) {
    return absl::PermissionDeniedError(
        absl::StrCat("journal '", path_, "': open: the file is not writable"));
  }
  if (stat(path_.c_str(), &info) == 0) {
    file_.emplace(info.st_dev, info.st_ino);
    OpenFiles().insert(*file_);
  }
  return absl::OkStatus();
}

absl::Status SqliteJournal::Initialize(const Options& options) {
  sqlite3_extended_result_codes(db_.get(), 1);
  // Another process holds its lock until it ends, so waiting for it is in vain.
  sqlite3_busy_timeout(db_.get(), 0);
  // First, because otherwise a read creates a shared-memory file, for which a full disk has no
  // room.
  RETURN_IF_ERROR(Execute("PRAGMA locking_mode=EXCLUSIVE"));
  ASSIGN_OR_RETURN(const bool is_there, CheckOwnership());  // Before anything is written.
  // Before WAL mode, in which the size of pages cannot change any more.
  if (!is_there) RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA page_size=", options.page_bytes)));
  RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
  RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
  ASSIGN_OR_RETURN(witness_, JournalWitness::Open(path_ + kWitnessSuffix));
  if (!is_there && witness_.number() > 0) {
    return absl::DataLossError(
        absl::StrCat("journal '", path_, "': it is empty, but '", path_, kWitnessSuffix,
                     "' has recorded ", witness_.number(),
                     " changes of it: find the journal, or remove that file to begin a new one"));
  }
  // An existing journal is not written to here, so that a full disk does not prevent reading it.
  if (!is_there) RETURN_IF_ERROR(CreateTables());
  if (options.max_pages > 0) {
    RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA max_page_count=", options.max_pages)));
  }
  ASSIGN_OR_RETURN(put_, Prepare("INSERT OR REPLACE INTO rows VALUES(?1, ?2, ?3)"));
  ASSIGN_OR_RETURN(delete_, Prepare("DELETE FROM rows WHERE key = ?1"));
  ASSIGN_OR_RETURN(delete_range_, Prepare("DELETE FROM rows WHERE key >= ?1 AND key < ?2"));
  ASSIGN_OR_RETURN(select_, Prepare("SELECT checksum FROM rows WHERE key = ?1"));
  ASSIGN_OR_RETURN(select_range_,
                   Prepare("SELECT checksum FROM rows WHERE key >= ?1 AND key < ?2"));
  ASSIGN_OR_RETURN(set_head_, Prepare("UPDATE head SET number = ?1, digest = ?2, checksum = ?3"));
  if (options.sets_room_aside) {
    log_bytes_ = kLogPages * (options.page_bytes + kLogHeaderBytes);
    SetLogAside(path_, log_bytes_);
  }
  return ReadHead();
}

absl::Status SqliteJournal::CreateTables() {
  return Execute(absl::StrCat(
      "BEGIN IMMEDIATE; PRAGMA application_id=", kApplicationId,
      "; PRAGMA user_version=", kSchemaVersion,
      // With row ids: without them SQLite would read values of any size to find the keys next to
      // them.
      "; CREATE TABLE rows(key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL, checksum INTEGER "
      "NOT NULL); CREATE TABLE head(number INTEGER NOT NULL, digest INTEGER NOT "
      "NULL, checksum INTEGER NOT NULL); INSERT INTO head VALUES(0, 0, ",
      static_cast<int64_t>(HeadChecksum(0, 0)), "); COMMIT"));
}

absl::Status SqliteJournal::ReadHead() {
  ASSIGN_OR_RETURN(const Statement statement, Prepare("SELECT number, digest, checksum FROM head"));
  const int code = sqlite3_step(statement.get());
  if (code != SQLITE_ROW && code != SQLITE_DONE) return Error(code, "read");
  if (code == SQLITE_ROW) {
    number_ = sqlite3_column_int64(statement.get(), 0);
    digest_ = static_cast<uint64_t>(sqlite3_column_int64(statement.get(), 1));
  }
  if (code == SQLITE_DONE || HeadChecksum(number_, digest_) !=
                                 static_cast<uint64_t>(sqlite3_column_int64(statement.get(), 2))) {
    return absl::DataLossError(absl::StrCat("journal '", path_, "': its head is damaged"));
  }
  if (witness_.number() <= number_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "journal '", path_, "' has ", number_, " changes, and ", witness_.number(),
      " were acknowledged: the last ones are missing, because '", path_,
      "-wal' is damaged, truncated or missing, or this is an older copy. To continue with it, and "
      "take over from the workers what it lacks, remove '",
      path_, kWitnessSuffix, "'"));
}

absl::StatusOr<bool> SqliteJournal::CheckOwnership() {
  ASSIGN_OR_RETURN(const int64_t num_tables, QueryInt("SELECT count(*) FROM sqlite_master"));
  ASSIGN_OR_RETURN(const int64_t application_id, QueryInt("PRAGMA application_id"));
  ASSIGN_OR_RETURN(const int64_t version, QueryInt("PRAGMA user_version"));
  if (application_id != kApplicationId && (num_tables > 0 || application_id != 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat("journal '", path_, "': the file belongs to another program"));
  }
  if (application_id == 0) return false;
  if (version != kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat("journal '", path_, "': written in version ",
                                                      version, "; this program reads version ",
                                                      kSchemaVersion));
  }
  if (num_tables == 0) {
    return absl::DataLossError(absl::StrCat("journal '", path_, "': its tables are gone"));
  }
  return true;
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
  // FULL syncs the write-ahead log with each commit. NORMAL leaves that to later: a power failure
  // may take the last commits away.
  RETURN_IF_ERROR(Execute(durability == Durability::kPowerLoss ? "PRAGMA synchronous=FULL"
                                                               : "PRAGMA synchronous=NORMAL"));
  durability_ = durability;
  return absl::OkStatus();
}

absl::Status SqliteJournal::Append(absl::Span<const JournalChange> batch, Durability durability) {
  RETURN_IF_ERROR(FaultPoint("journal.sqlite.append"));
  RETURN_IF_ERROR(SetDurability(durability));
  RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  // Some errors have already ended the transaction.
  absl::Cleanup rollback = [this] {
    if (sqlite3_get_autocommit(db_.get()) == 0) Execute("ROLLBACK").IgnoreError();
  };
  // A copy, so that a batch that fails leaves no trace in memory either.
  uint64_t digest = digest_;
  for (const JournalChange& change : batch) RETURN_IF_ERROR(Apply(change, &digest));
  // Workers compare this number after a restart, so only what survives a power failure counts.
  const int64_t number = number_ + (durability == Durability::kPowerLoss ? 1 : 0);
  sqlite3_stmt* statement = set_head_.get();
  absl::Cleanup reset = [statement] { sqlite3_reset(statement); };
  sqlite3_bind_int64(statement, 1, number);
  sqlite3_bind_int64(statement, 2, static_cast<int64_t>(digest));
  sqlite3_bind_int64(statement, 3, static_cast<int64_t>(HeadChecksum(number, digest)));
  const int code = sqlite3_step(statement);
  if (code != SQLITE_DONE) return Error(code, "write");
  // COMMIT is refused while a statement that writes is in progress.
  std::move(reset).Invoke();
  RETURN_IF_ERROR(Execute("COMMIT"));
  number_ = number;
  digest_ = digest;
  // The change is durable. A witness that lags behind detects less, but refuses nothing.
  if (witness_.number() != number_) witness_.Write(number_).IgnoreError();
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SqliteJournal::SumOfChecksums(sqlite3_stmt* statement) {
  absl::Cleanup reset = [statement] { sqlite3_reset(statement); };
  uint64_t sum = 0;
  int code = SQLITE_OK;
  while ((code = sqlite3_step(statement)) == SQLITE_ROW)
    sum += static_cast<uint64_t>(sqlite3_column_int64(statement, 0));
  if (code != SQLITE_DONE) return Error(code, "read");
  return sum;
}

absl::Status SqliteJournal::Apply(const JournalChange& change, uint64_t* digest) {
  const bool is_range = change.kind == JournalChange::Kind::kDeletePrefix;
  sqlite3_stmt* statement = is_range ? delete_range_.get() : delete_.get();
  if (change.kind == JournalChange::Kind::kPut) statement = put_.get();
  absl::Cleanup reset = [statement] { sqlite3_reset(statement); };
  std::string end = change.key;  // The first key after all that begin with the prefix.
  if (is_range) ++end.back();    // Keys are ASCII, so this does not overflow.
  sqlite3_stmt* before = is_range ? select_range_.get() : select_.get();
  for (sqlite3_stmt* bound : {before, statement}) {
    sqlite3_bind_text(bound, 1, change.key.data(), change.key.size(), SQLITE_STATIC);
    if (is_range) sqlite3_bind_text(bound, 2, end.data(), end.size(), SQLITE_STATIC);
  }
  ASSIGN_OR_RETURN(const uint64_t gone, SumOfChecksums(before));
  *digest -= gone;
  if (change.kind == JournalChange::Kind::kPut) {
    const uint64_t checksum = RowChecksum(change.key, change.value);
    *digest += checksum;
    // A null pointer would be stored as NULL, which the column refuses.
    sqlite3_bind_blob64(statement, 2, change.value.data() != nullptr ? change.value.data() : "",
                        change.value.size(), SQLITE_STATIC);
    sqlite3_bind_int64(statement, 3, static_cast<int64_t>(checksum));
  }
  const int code = sqlite3_step(statement);
  return code == SQLITE_DONE ? absl::OkStatus() : Error(code, "write");
}

absl::StatusOr<std::vector<JournalRow>> SqliteJournal::ReadAll() {
  ASSIGN_OR_RETURN(const Statement statement,
                   Prepare("SELECT key, value, checksum FROM rows ORDER BY key"));
  std::vector<JournalRow> rows;
  uint64_t digest = 0;
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
    digest += checksum;
    rows.push_back(std::move(row));
  }
  if (code != SQLITE_DONE) return Error(code, "read");
  if (digest != digest_) {
    return absl::DataLossError(
        absl::StrCat("journal '", path_, "' is damaged: it lacks records, or has too many"));
  }
  return rows;
}

}  // namespace tessera::coordinator
