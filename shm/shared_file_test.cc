#include "shm/shared_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shm/region.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMost = 1 << 20;

TEST(SharedFileTest, WhatIsReopenedShowsTheSameMemoryAndCannotBeWrittenTo) {
  ASSERT_OK_AND_ASSIGN(const SharedRegion region, SharedRegion::Create("test", 4096));
  ASSERT_OK_AND_ASSIGN(const Mapping own, Mapping::CreateWhole(region.fd(), Access::kReadWrite));
  ASSERT_OK_AND_ASSIGN(const UniqueFd given, ReopenForReading(region.fd()));
  EXPECT_FALSE(Mapping::CreateWhole(given.get(), Access::kReadWrite).ok());
  ASSERT_OK_AND_ASSIGN(const Mapping shown, Mapping::CreateWhole(given.get(), Access::kReadOnly));
  own.data()[7] = std::byte{42};
  EXPECT_EQ(shown.data()[7], std::byte{42});
  EXPECT_NE(mprotect(shown.data(), 4096, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(write(given.get(), "x", 1), -1);
  EXPECT_EQ(fcntl(given.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  ASSERT_OK_AND_ASSIGN(const int64_t size_bytes, SizeOfSealed(given.get()));
  EXPECT_EQ(size_bytes, 4096);
}

TEST(SharedFileTest, SealedFileIsReadAsItWasMade) {
  for (const std::string& bytes : {std::string(), std::string("abc"), std::string(300'000, 'z')}) {
    ASSERT_OK_AND_ASSIGN(const UniqueFd file, MakeSealedFile("test", bytes));
    EXPECT_EQ(pwrite(file.get(), "x", 1, 0), -1);
    ASSERT_OK_AND_ASSIGN(const std::string read, ReadSealedFile(file.get(), kMost));
    EXPECT_EQ(read, bytes);
  }
}

TEST(SharedFileTest, WhatMayShrinkChangeOrIsNoMemoryIsRefused) {
  const auto expect_refused = [](int fd, const char* why) {
    EXPECT_THAT(ReadSealedFile(fd, kMost).status(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(why)));
  };
  const UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_TRUE(unsealed.valid());
  EXPECT_FALSE(SizeOfSealed(unsealed.get()).ok());
  expect_refused(unsealed.get(), "may shrink");
  ASSERT_OK_AND_ASSIGN(const SharedRegion region, SharedRegion::Create("test", 4096));
  expect_refused(region.fd(), "may change");
  std::string path = ::testing::TempDir() + "/shared-XXXXXX";
  const UniqueFd on_disk(mkstemp(path.data()));
  ASSERT_TRUE(on_disk.valid());
  EXPECT_EQ(unlink(path.c_str()), 0);
  expect_refused(on_disk.get(), "not memory");
  ASSERT_OK_AND_ASSIGN(const UniqueFd large, MakeSealedFile("test", std::string(kMost + 1, 'z')));
  expect_refused(large.get(), "1048577 bytes");
  expect_refused(-1, "not memory");
}

}  // namespace
}  // namespace tessera
