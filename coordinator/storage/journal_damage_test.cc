// Every bit of a journal's files flipped, and each file cut at every byte, as a killed coordinator
// leaves them: the journal opens with the same rows, or is refused with a named cause.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "coordinator/storage/sqlite_journal.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using Kind = JournalChange::Kind;

class JournalDamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // In memory: some ten thousand journals are opened.
    folder_ = "/dev/shm/tessera-journal-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    SqliteJournal::Options options;
    options.sets_room_aside = false;  // It is opened thousands of times.
    options.path = folder_ + "/recorded";
    options.page_bytes = 512;  // Few bytes, the same structures.
    ASSERT_OK_AND_ASSIGN(const auto journal, SqliteJournal::Open(options));
    for (int i = 0; i < 4; ++i) {
      ASSERT_OK(journal->Append(
          {{Kind::kPut, absl::StrCat("job/", i % 3, "/status"), std::string(90, 'a' + i)},
           {Kind::kDelete, absl::StrCat("member/", i - 1), ""},
           {Kind::kPut, absl::StrCat("member/", i), "m"}},
          Durability::kPowerLoss));
    }
    ASSERT_OK_AND_ASSIGN(rows_, journal->ReadAll());
    // While it is open, as after SIGKILL.
    for (const char* suffix : {"", "-wal", "-head"}) {
      std::ostringstream bytes;
      bytes << std::ifstream(options.path + suffix, std::ios::binary).rdbuf();
      files_[suffix] = bytes.str();
      ASSERT_FALSE(files_[suffix].empty()) << suffix;
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Opens the recorded files, with this file in place of the one with its suffix.
  void ExpectSameOrRefused(const std::string& suffix, const std::string& bytes,
                           const std::string& what) {
    SqliteJournal::Options options;
    options.sets_room_aside = false;  // It is opened thousands of times.
    options.path = folder_ + "/damaged";
    for (const auto& [name, recorded] : files_) {
      std::ofstream file(options.path + name, std::ios::binary | std::ios::trunc);
      file << (name == suffix ? bytes : recorded);
    }
    const auto opened = [&]() -> absl::StatusOr<std::vector<JournalRow>> {
      ASSIGN_OR_RETURN(const auto journal, SqliteJournal::Open(options));
      return journal->ReadAll();
    }();
    if (opened.ok()) {
      ++same_;
      EXPECT_EQ(*opened, rows_) << what;
    } else {
      ++refused_;
      EXPECT_TRUE(absl::StrContains(opened.status().message(), options.path))
          << what << ": " << opened.status();
    }
  }

  std::string folder_;
  std::map<std::string, std::string> files_;
  std::vector<JournalRow> rows_;
  int same_ = 0, refused_ = 0;
};

TEST_F(JournalDamageTest, EveryFlippedBitIsWithoutEffectOrRefused) {
  for (const auto& [suffix, recorded] : files_) {
    std::string bytes = recorded;
    for (size_t bit = 0; bit < 8 * recorded.size(); ++bit) {
      bytes[bit / 8] ^= 1 << (bit % 8);
      ExpectSameOrRefused(suffix, bytes, absl::StrCat("bit ", bit, " of '", suffix, "'"));
      bytes[bit / 8] ^= 1 << (bit % 8);
    }
  }
  EXPECT_GT(same_, 0);
  EXPECT_GT(refused_, 0);
}

TEST_F(JournalDamageTest, EveryCutIsWithoutEffectOrRefused) {
  for (const auto& [suffix, recorded] : files_) {
    for (size_t size = 0; size < recorded.size(); ++size)
      ExpectSameOrRefused(suffix, recorded.substr(0, size),
                          absl::StrCat("'", suffix, "' of ", size));
  }
  EXPECT_GT(refused_, 0);
}

}  // namespace
}  // namespace tessera::coordinator
