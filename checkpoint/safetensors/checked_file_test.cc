#include "checkpoint/safetensors/checked_file.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Test;

constexpr char kFile[] = "model.safetensors";

class CheckedFileTest : public Test {
 protected:
  // A file of one tensor "w" of so many bytes, and what the manifest says of it.
  void Save(int64_t size_bytes) {
    std::mt19937 random(3);
    bytes_.resize(size_bytes);
    for (char& byte : bytes_) byte = static_cast<char>(random());
    const absl::StatusOr<SafetensorsHeader> header =
        PlaceInfos({{"w", {StoredDType::kU8, {size_bytes}}}}, {});
    ASSERT_OK(header.status());
    const std::string head = EncodeHeader(*header);
    std::ofstream(absl::StrCat(folder_, "/", kFile), std::ios::binary) << head << bytes_;
    ManifestFile& file = manifest_.files[kFile];
    file.size_bytes = static_cast<int64_t>(head.size()) + size_bytes;
    file.crc32 = Crc32(head);
    file.tensors["w"] = Crc32(bytes_);
  }

  const std::string folder_ = ::testing::TempDir();
  std::string bytes_;
  Manifest manifest_;
};

TEST_F(CheckedFileTest, AnyPartIsReadWithItsSumAndNothingBesideIt) {
  constexpr int64_t kSize = (3 << 20) + 77;
  Save(kSize);
  ASSERT_OK_AND_ASSIGN(const CheckedFile file, CheckedFile::Open(folder_, kFile, manifest_));
  struct Part {
    int64_t begin, size;
  };
  for (const auto [begin, size] :
       {Part{0, kSize}, Part{1, kSize - 1}, Part{7, 1 << 20}, Part{13, (1 << 20) - 1},
        Part{(1 << 20) + 5, (2 << 20) + 3}, Part{kSize - 1, 1}, Part{kSize, 0}}) {
    SCOPED_TRACE(absl::StrCat(size, " bytes from ", begin));
    std::string into(size + 130, '#');
    uint32_t crc32 = Crc32(bytes_.substr(0, begin));
    ASSERT_OK(file.Read("w", begin, size, &into[65], &crc32));
    const std::string around(65, '#');
    EXPECT_TRUE(into == around + bytes_.substr(begin, size) + around);
    EXPECT_EQ(crc32, Crc32(bytes_.substr(0, begin + size)));
  }
  EXPECT_OK(file.Verify("w"));
}

TEST_F(CheckedFileTest, AFileThatBecomesShorterWhileItIsReadIsAnErrorThatNamesIt) {
  constexpr int64_t kSize = 3 << 20;
  Save(kSize);
  ASSERT_OK_AND_ASSIGN(const CheckedFile file, CheckedFile::Open(folder_, kFile, manifest_));
  const std::string path = absl::StrCat(folder_, "/", kFile);
  ASSERT_EQ(truncate(path.c_str(), 2 << 20), 0);
  std::string into(kSize, '#');
  uint32_t crc32 = kCrc32OfNothing;
  EXPECT_THAT(file.Read("w", 0, kSize, &into[0], &crc32),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
}

}  // namespace
}  // namespace tessera
