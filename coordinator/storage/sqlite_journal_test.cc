// What is specific to the SQLite back-end: damage, versions, full disks, a second process.
#include "coordinator/storage/sqlite_journal.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/storage/row_checksum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class SqliteJournalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = absl::StrCat(::testing::TempDir(), "/",
                         ::testing::UnitTest::GetInstance()->current_test_info()->name(), ".db");
    std::remove(path_.c_str());
    std::remove((path_ + "-head").c_str());
  }
  absl::StatusOr<std::unique_ptr<SqliteJournal>> Open(int64_t max_pages = 0) {
    SqliteJournal::Options options;
    options.path = path_;
    options.max_pages = max_pages;
    return SqliteJournal::Open(options);
  }
  absl::Status Append(SqliteJournal* journal, const std::string& key, const std::string& value) {
    return journal->Append({{JournalChange::Kind::kPut, key, value}}, Durability::kPowerLoss);
  }
  void WriteTwoRows() {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    ASSERT_OK(Append(journal.get(), "first", "1"));
    ASSERT_OK(Append(journal.get(), "second", "2"));
  }
  // Runs SQL without the journal's knowledge.
  void Tamper(const std::string& sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
    char* error = nullptr;
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &error), SQLITE_OK) << error;
    sqlite3_close(db);
  }

  std::string path_;
};

// That this process has read, from files and elsewhere.
int64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string name;
  int64_t bytes = 0;
  io >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

TEST_F(SqliteJournalTest, RowThatIsVeryLongCostsTheOthersNothing) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  ASSERT_OK(Append(journal.get(), "job/b/spec", std::string(16 << 20, 'm')));
  ASSERT_OK(Append(journal.get(), "job/a/step", "0"));
  ASSERT_OK(Append(journal.get(), "job/c/step", "0"));
  const int64_t before = BytesRead();
  for (int i = 1; i <= 10; ++i) {
    ASSERT_OK(Append(journal.get(), "job/a/step", absl::StrCat(i)));
    ASSERT_OK(Append(journal.get(), "job/c/step", absl::StrCat(i)));
  }
  EXPECT_LT(BytesRead() - before, 1 << 20);
}

TEST_F(SqliteJournalTest, DamagedRowIsNamed) {
  WriteTwoRows();
  Tamper("UPDATE rows SET value = x'00' WHERE key = 'second'");
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  EXPECT_THAT(journal->ReadAll(), StatusIs(absl::StatusCode::kDataLoss,
                                           AllOf(HasSubstr("'second'"), HasSubstr(path_))));
}

TEST_F(SqliteJournalTest, RowUnderAnotherKeyIsDamageToo) {
  WriteTwoRows();
  Tamper("UPDATE rows SET key = 'third' WHERE key = 'second'");
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  EXPECT_THAT(journal->ReadAll(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'third'")));
}

TEST_F(SqliteJournalTest, NewerVersionIsRefusedNamingBothAndLeftAsItIs) {
  WriteTwoRows();
  Tamper("PRAGMA user_version=99");
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("version 99"), HasSubstr("reads version 2"))));
  }
  Tamper("PRAGMA user_version=2");
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  EXPECT_THAT(*journal->ReadAll(), SizeIs(2));
}

TEST_F(SqliteJournalTest, FileOfAnotherProgramIsRefused) {
  Tamper("CREATE TABLE precious(x); INSERT INTO precious VALUES(1)");
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("belongs to another program")));
}

TEST_F(SqliteJournalTest, FileThatIsNoDatabaseIsRefused) {
  std::ofstream(path_) << std::string(8192, 'x');
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_)));
}

TEST_F(SqliteJournalTest, PathThatCannotBeWrittenIsRefused) {
  path_ = "/nonexistent-folder/journal.db";
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(path_)));
  path_ = ::testing::TempDir();
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is a folder")));
}

TEST_F(SqliteJournalTest, ReadOnlyFileIsRefused) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  WriteTwoRows();
  ASSERT_EQ(chmod(path_.c_str(), 0444), 0);
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(path_)));
}

TEST_F(SqliteJournalTest, SecondProcessIsRefused) {
  int to_other[2], from_other[2];
  ASSERT_EQ(pipe(to_other), 0);
  ASSERT_EQ(pipe(from_other), 0);
  // Forked before this process has the journal, of which it then knows nothing.
  const pid_t other = fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    char go;
    (void)!read(to_other[0], &go, 1);
    const std::string result = Open().status().ToString();
    (void)!write(from_other[1], result.data(), result.size());
    _exit(0);
  }
  close(from_other[1]);
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  ASSERT_OK(Append(journal.get(), "k", "v"));
  ASSERT_EQ(write(to_other[1], "g", 1), 1);
  char result[1024];
  const ssize_t size = read(from_other[0], result, sizeof(result));
  ASSERT_GT(size, 0);
  EXPECT_THAT(std::string(result, size), AllOf(HasSubstr("FAILED_PRECONDITION"),
                                               HasSubstr("another process holds the journal")));
  ASSERT_EQ(waitpid(other, nullptr, 0), other);
  for (const int fd : {to_other[0], to_other[1], from_other[0]}) close(fd);
}

TEST_F(SqliteJournalTest, SecondOpenInThisProcessIsRefusedAndTheFirstKeepsOthersOut) {
  // Whether another process would be refused.
  const auto is_locked = [this] {
    const pid_t other = fork();
    if (other == 0) {
      struct flock lock = {};
      lock.l_type = F_WRLCK;
      const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
      _exit(fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(other, &status, 0), other);
    return status == 0;
  };
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  ASSERT_OK(Append(journal.get(), "k", "v"));
  EXPECT_TRUE(is_locked());
  const std::string path = path_, link = path_ + ".link";
  std::remove(link.c_str());
  ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
  for (const std::string& name : {path, link}) {
    path_ = name;
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr(name), HasSubstr("this process has it open"))));
    EXPECT_TRUE(is_locked());
  }
  path_ = path;
  ASSERT_OK(Append(journal.get(), "k", "w"));
  journal.reset();
  EXPECT_FALSE(is_locked());
  EXPECT_OK(Open());
}

TEST_F(SqliteJournalTest, FullDiskRefusesTheWholeBatchAndKeepsTheRest) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open(/*max_pages=*/16));
  ASSERT_OK(Append(journal.get(), "before", "1"));
  const std::vector<JournalChange> batch = {
      {JournalChange::Kind::kPut, "small", "2"},
      {JournalChange::Kind::kPut, "large", std::string(1 << 20, 'x')}};
  EXPECT_THAT(journal->Append(batch, Durability::kPowerLoss),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("full")));
  EXPECT_THAT(*journal->ReadAll(), SizeIs(1));
  EXPECT_OK(Append(journal.get(), "after", "3"));
  journal.reset();
  ASSERT_OK_AND_ASSIGN(journal, Open());
  EXPECT_THAT(*journal->ReadAll(), SizeIs(2));
}

TEST_F(SqliteJournalTest, RowsThatWereAddedOrRemovedAreNoticed) {
  WriteTwoRows();
  Tamper("DELETE FROM rows WHERE key = 'first'");
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  EXPECT_THAT(journal->ReadAll(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("lacks records")));
}

TEST_F(SqliteJournalTest, LostChangesAreNoticedAndTheJournalIsTakenWhereItsWitnessIsRemoved) {
  WriteTwoRows();
  std::filesystem::copy_file(path_, path_ + ".copy");
  {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    ASSERT_OK(Append(journal.get(), "third", "3"));
  }
  std::filesystem::rename(path_ + ".copy", path_);
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kDataLoss,
                               AllOf(HasSubstr("has 2 changes, and 3 were acknowledged"),
                                     HasSubstr(path_ + "-head"))));
  ASSERT_TRUE(std::filesystem::remove(path_ + "-head"));
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  EXPECT_THAT(*journal->ReadAll(), SizeIs(2));
  ASSERT_OK(Append(journal.get(), "third", "3"));
}

TEST_F(SqliteJournalTest, FileThatIsGoneIsNoNewJournalWhileItsWitnessIsThere) {
  WriteTwoRows();
  ASSERT_TRUE(std::filesystem::remove(path_));
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has recorded 2 changes")));
}

TEST_F(SqliteJournalTest, DeletionsAndReplacementsKeepTheSumOfChecksums) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  using Kind = JournalChange::Kind;
  ASSERT_OK(
      journal->Append({{Kind::kPut, "a/1", "x"}, {Kind::kPut, "a/2", "y"}, {Kind::kPut, "b", "z"}},
                      Durability::kPowerLoss));
  ASSERT_OK(journal->Append({{Kind::kPut, "a/1", "w"}, {Kind::kDelete, "c", ""}},
                            Durability::kProcessDeath));
  ASSERT_OK(journal->Append({{Kind::kDeletePrefix, "a/", ""}, {Kind::kPut, "a/3", "v"}},
                            Durability::kPowerLoss));
  journal.reset();
  ASSERT_OK_AND_ASSIGN(journal, Open());
  EXPECT_THAT(*journal->ReadAll(), SizeIs(2));
}

TEST_F(SqliteJournalTest, ChecksumCoversKeyAndValueApart) {
  EXPECT_NE(RowChecksum("ab", "c"), RowChecksum("a", "bc"));
  EXPECT_EQ(RowChecksum("", ""), 0xcbf29ce484222325u * 0x100000001b3u);  // One zero byte.
}

}  // namespace
}  // namespace tessera::coordinator
