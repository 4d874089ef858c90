#include "checkpoint/storage/mapped_window.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "checkpoint/storage/storage.h"
#include "checkpoint/storage/storage_of.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kSize = 9 * kMiB + 12345;

class MappedWindowTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-mapped-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/file";
    std::mt19937_64 random(11);
    bytes_.resize(kSize);
    for (char& byte : bytes_) byte = static_cast<char>(random());
    std::ofstream(path_, std::ios::binary) << bytes_;
    fd_ = UniqueFd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(fd_.valid());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Some file systems cannot say what the page cache has of a file: theirs are read.
  void LetFilesBeMappedIfTheyCan() {
    LetFilesBeMapped();
    if (!MappedWindow::OfCached(fd_.get(), 0, 1))
      GTEST_SKIP() << folder_ << " lies on a file system whose files are not mapped";
  }
  void CutOffAt(int64_t size_bytes) { ASSERT_EQ(truncate(path_.c_str(), size_bytes), 0); }
  std::unique_ptr<ReadableFile> OpenIt() {
    auto file = (*StorageOf(path_))->OpenFile(path_);
    EXPECT_OK(file);
    return *std::move(file);
  }

  std::string folder_, path_, bytes_;
  UniqueFd fd_;
  const std::unique_ptr<ReadableFile::PieceRoom> room_{new ReadableFile::PieceRoom};
};

TEST_F(MappedWindowTest, IsOfNoProcessThatHasNotSaidSo) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";  // A process of its own.
  EXPECT_EXIT(_exit(MappedWindow::OfCached(fd_.get(), 0, kMiB) ? 1 : 0), testing::ExitedWithCode(0),
              "");
}

TEST_F(MappedWindowTest, CopiesAnyBytesOfAnyPartOfTheFileAndNothingBesideThem) {
  ASSERT_NO_FATAL_FAILURE(LetFilesBeMappedIfTheyCan());
  if (IsSkipped()) return;
  for (const auto& [at, size] : std::vector<std::pair<int64_t, int64_t>>{
           {0, kSize}, {4096, kMiB}, {4097, kMiB}, {kMiB - 1, 1}, {kSize - 4097, 4097}}) {
    SCOPED_TRACE(absl::StrCat(size, " bytes from ", at));
    const auto window = MappedWindow::OfCached(fd_.get(), at, size);
    ASSERT_TRUE(window);
    for (const int64_t from : {int64_t{0}, std::min<int64_t>(size - 1, 4095), size - 1}) {
      const int64_t count = std::min<int64_t>(size - from, 70000);
      std::string into(count + 2, '#');
      ASSERT_TRUE(window->Copy(from, count, &into[1]));
      EXPECT_TRUE(into == "#" + bytes_.substr(at + from, count) + "#") << from;
    }
  }
}

TEST_F(MappedWindowTest, IsNotOfWhatTheFileDoesNotHave) {
  LetFilesBeMapped();
  EXPECT_FALSE(MappedWindow::OfCached(fd_.get(), 0, kSize + 1));
  EXPECT_FALSE(MappedWindow::OfCached(fd_.get(), kSize, 1));
  EXPECT_FALSE(MappedWindow::OfCached(fd_.get(), 0, 0));
  EXPECT_FALSE(MappedWindow::OfCached(-1, 0, 1));
}

TEST_F(MappedWindowTest, FileThatIsCutOffUnderItIsACopyThatFailsInThisThreadAlone) {
  ASSERT_NO_FATAL_FAILURE(LetFilesBeMappedIfTheyCan());
  if (IsSkipped()) return;
  const auto window = MappedWindow::OfCached(fd_.get(), 0, kSize);
  ASSERT_TRUE(window);
  ASSERT_NO_FATAL_FAILURE(CutOffAt(kMiB));
  std::string into(kMiB, '#');
  std::thread other([&] {
    std::string others(kMiB, '#');
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(window->Copy(0, kMiB, others.data()));
      EXPECT_TRUE(others == bytes_.substr(0, kMiB));
    }
  });
  EXPECT_FALSE(window->Copy(3 * kMiB, kMiB, into.data()));
  EXPECT_FALSE(window->Copy(kMiB - 1, 2, into.data()));
  EXPECT_TRUE(window->Copy(0, kMiB, into.data()));
  EXPECT_TRUE(into == bytes_.substr(0, kMiB));
  other.join();
}

TEST_F(MappedWindowTest, FaultOfAnythingElseEndsTheProcessAsEver) {
  const auto touch_behind_the_end = [&] {
    LetFilesBeMapped();
    (void)!truncate(path_.c_str(), 0);
    volatile const char* bytes =
        static_cast<char*>(mmap(nullptr, kMiB, PROT_READ, MAP_SHARED, fd_.get(), 0));
    (void)bytes[0];
  };
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(touch_behind_the_end(), testing::KilledBySignal(SIGBUS), "");
}

TEST_F(MappedWindowTest, FileReadInPiecesGivesAllOfThemInOrderMappedOrNot) {
  for (const bool mapped : {false, true}) {
    if (mapped) LetFilesBeMapped();
    const auto file = OpenIt();
    for (const auto& [at, size] : std::vector<std::pair<int64_t, int64_t>>{
             {0, kSize}, {13, 4 * kMiB}, {4096, 4 * kMiB + 1}, {5, 600 << 10}, {7, 100}, {9, 0}}) {
      SCOPED_TRACE(absl::StrCat(size, " bytes from ", at, mapped ? ", mapped" : ""));
      std::string got;
      bool last = false;
      ASSERT_OK(file->ReadInPieces(at, size, room_.get(), [&](absl::Span<const char> piece) {
        EXPECT_FALSE(last) << "a piece after one of an odd size";
        last = piece.size() % ReadableFile::kPieceMultipleBytes != 0;
        got.append(piece.data(), piece.size());
      }));
      EXPECT_TRUE(got == bytes_.substr(at, size));
    }
  }
}

TEST_F(MappedWindowTest, FileThatIsCutOffWhileItIsReadInPiecesIsAnErrorThatNamesIt) {
  LetFilesBeMapped();
  const auto file = OpenIt();
  for (const int64_t left_bytes : {6 * kMiB, 3 * kMiB, int64_t{0}}) {
    int64_t taken = 0;
    EXPECT_THAT(file->ReadInPieces(0, kSize, room_.get(),
                                   [&](absl::Span<const char> piece) {
                                     if (taken == 0) CutOffAt(left_bytes);
                                     taken += static_cast<int64_t>(piece.size());
                                   }),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_)));
    EXPECT_LT(taken, kSize);
    std::ofstream(path_, std::ios::binary) << bytes_;
  }
}

TEST_F(MappedWindowTest, FileThatThePageCacheHasNotIsReadAllTheSame) {
  LetFilesBeMapped();
  ASSERT_EQ(fsync(fd_.get()), 0);
  // A hint only: pages that stay cached are mapped.
  ASSERT_EQ(posix_fadvise(fd_.get(), 0, kSize, POSIX_FADV_DONTNEED), 0);
  const auto file = OpenIt();
  std::string got;
  ASSERT_OK(file->ReadInPieces(0, kSize, room_.get(), [&](absl::Span<const char> piece) {
    got.append(piece.data(), piece.size());
  }));
  EXPECT_TRUE(got == bytes_);
}

}  // namespace
}  // namespace tessera
