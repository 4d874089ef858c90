// What every Journal promises, checked for each back-end. "Reopen" is what a restart does.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/storage/journal.h"
#include "coordinator/storage/memory_journal.h"
#include "coordinator/storage/sqlite_journal.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Kind = JournalChange::Kind;

JournalChange Put(std::string key, std::string value) {
  return {Kind::kPut, std::move(key), std::move(value)};
}
JournalChange Delete(std::string key) { return {Kind::kDelete, std::move(key), ""}; }
JournalChange DeletePrefix(std::string key) { return {Kind::kDeletePrefix, std::move(key), ""}; }

struct BackEnd {
  std::string name;
  // Opens the journal at `path`, given the one that was open there before (or null).
  std::function<absl::StatusOr<std::unique_ptr<Journal>>(const std::string& path,
                                                         std::unique_ptr<Journal> previous)>
      reopen;
};

std::vector<BackEnd> BackEnds() {
  return {
      {"Memory",
       [](const std::string&, std::unique_ptr<Journal> previous) {
         if (previous == nullptr) previous = std::make_unique<MemoryJournal>();
         return absl::StatusOr<std::unique_ptr<Journal>>(std::move(previous));
       }},
      {"Sqlite",
       [](const std::string& path, std::unique_ptr<Journal> previous) {
         previous.reset();
         SqliteJournal::Options options;
         options.path = path;
         return absl::StatusOr<std::unique_ptr<Journal>>(SqliteJournal::Open(options));
       }},
  };
}

class JournalConformanceTest : public ::testing::TestWithParam<BackEnd> {
 protected:
  void SetUp() override {
    std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '_');
    path_ = absl::StrCat(::testing::TempDir(), "/", name, ".db");
    std::remove(path_.c_str());
    Reopen();
  }
  void Reopen() { ASSERT_OK_AND_ASSIGN(journal_, GetParam().reopen(path_, std::move(journal_))); }
  absl::Status Append(std::vector<JournalChange> batch,
                      Durability durability = Durability::kPowerLoss) {
    return journal_->Append(batch, durability);
  }
  std::vector<JournalRow> Rows() {
    absl::StatusOr<std::vector<JournalRow>> rows = journal_->ReadAll();
    EXPECT_OK(rows);
    return rows.ok() ? *rows : std::vector<JournalRow>();
  }

  std::string path_;
  std::unique_ptr<Journal> journal_;
};

TEST_P(JournalConformanceTest, NewOneIsEmpty) { EXPECT_THAT(Rows(), IsEmpty()); }

TEST_P(JournalConformanceTest, LatestValueOfEachKeySurvivesInKeyOrder) {
  EXPECT_OK(Append({Put("b", "1"), Put("a", "2")}));
  EXPECT_OK(Append({Put("b", "3")}));
  Reopen();
  EXPECT_THAT(Rows(), ElementsAre(JournalRow{"a", "2"}, JournalRow{"b", "3"}));
}

TEST_P(JournalConformanceTest, ChangesOfABatchApplyInOrder) {
  EXPECT_OK(Append({Put("k", "1"), Delete("k"), Put("k", "2"), Put("x", "3"), Delete("x")}));
  EXPECT_THAT(Rows(), ElementsAre(JournalRow{"k", "2"}));
}

TEST_P(JournalConformanceTest, PrefixTakesAllKeysThatBeginWithItAndNoOther) {
  EXPECT_OK(Append({Put("job/a", "1"), Put("job/a/x", "2"), Put("job/a/y", "3"), Put("job/a0", "4"),
                    Put("job/b/x", "5"), Put("job/A/x", "6")}));
  EXPECT_OK(Append({DeletePrefix("job/a/")}));
  Reopen();
  EXPECT_THAT(Rows(), ElementsAre(JournalRow{"job/A/x", "6"}, JournalRow{"job/a", "1"},
                                  JournalRow{"job/a0", "4"}, JournalRow{"job/b/x", "5"}));
}

TEST_P(JournalConformanceTest, DeletingWhatIsNotThereIsNoError) {
  EXPECT_OK(Append({Delete("ghost"), DeletePrefix("ghost/")}));
}

TEST_P(JournalConformanceTest, AnyBytesAreKept) {
  const std::string bytes("\0\xff'\"\n;--", 8);
  EXPECT_OK(Append({Put("binary", bytes), Put("empty", ""), Put("quote'key", "q")}));
  Reopen();
  EXPECT_THAT(Rows(), ElementsAre(JournalRow{"binary", bytes}, JournalRow{"empty", ""},
                                  JournalRow{"quote'key", "q"}));
}

TEST_P(JournalConformanceTest, BothDurabilitiesSurviveAReopen) {
  EXPECT_OK(Append({Put("a", "1")}, Durability::kProcessDeath));
  EXPECT_OK(Append({Put("b", "2")}, Durability::kPowerLoss));
  EXPECT_OK(Append({Put("c", "3")}, Durability::kProcessDeath));
  Reopen();
  EXPECT_THAT(Rows(), SizeIs(3));
}

TEST_P(JournalConformanceTest, LargeValuesAndManyRows) {
  std::vector<JournalChange> batch = {Put("large", std::string(20 << 20, 'x'))};
  for (int i = 0; i < 2000; ++i) batch.push_back(Put(absl::StrCat("row/", i), "v"));
  EXPECT_OK(Append(batch));
  Reopen();
  EXPECT_THAT(Rows(), SizeIs(2001));
  EXPECT_EQ(Rows()[0].value.size(), 20 << 20);
}

INSTANTIATE_TEST_SUITE_P(BackEnds, JournalConformanceTest, ::testing::ValuesIn(BackEnds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::coordinator
