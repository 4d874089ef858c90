#include "checkpoint/storage/s3/file_parts.h"

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::s3 {
namespace {

using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMostCopyBytes = 16 * kMiB;

// What is promised of parts: in order, all bytes once, copies of one extent, none but the last too
// small for the protocol.
void ExpectParts(const std::vector<FilePart>& parts, int64_t file_bytes) {
  int64_t at = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const FilePart& part = parts[i];
    int64_t bytes = 0;
    for (const Extent& extent : part.extents) {
      EXPECT_EQ(extent.file_at_bytes, at + bytes);
      EXPECT_GT(extent.size_bytes, 0);
      bytes += extent.size_bytes;
    }
    EXPECT_EQ(part.size_bytes, bytes);
    if (i + 1 < parts.size()) {
      EXPECT_GE(bytes, kLeastPartBytes);
    }
    if (part.is_copy) {
      EXPECT_EQ(part.extents.size(), 1);
      EXPECT_GE(bytes, kLeastPartBytes);
      EXPECT_LE(bytes, kMostCopyBytes);
    } else {
      EXPECT_LE(bytes, std::max(kLeastPartBytes, file_bytes / 9'000 + 1)) << "in memory at once";
    }
    at += bytes;
  }
  EXPECT_EQ(at, file_bytes);
}

TEST(FilePartsTest, LargeExtentsAreCopiedAndSmallOnesJoined) {
  const std::vector<Extent> extents = {
      {"b", 0, 30 * kMiB, 100}, {"a", 7, 0, 100}, {"a", 500, 100, 30 * kMiB - 100}};
  ASSERT_OK_AND_ASSIGN(const std::vector<FilePart> parts,
                       PlanParts(extents, 30 * kMiB + 100, kMostCopyBytes));
  ExpectParts(parts, 30 * kMiB + 100);
  EXPECT_FALSE(parts.front().is_copy);
  EXPECT_TRUE(parts[1].is_copy);
  EXPECT_FALSE(parts.back().is_copy);
}

TEST(FilePartsTest, AnyExtentsBecomePartsThatAStoreTakes) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<Extent> extents;
    int64_t at = 0, object_at = 0;
    for (int i = 0, count = random() % 40; i < count; ++i) {
      const int64_t most = random() % 2 == 0 ? 1000 : 60 * kMiB;
      const int64_t bytes = random() % most;
      object_at += random() % 2;  // Some follow each other in the object, too.
      extents.push_back({random() % 4 == 0 ? "b" : "a", object_at, at, bytes});
      at += bytes;
      object_at += bytes;
    }
    std::shuffle(extents.begin(), extents.end(), random);
    ASSERT_OK_AND_ASSIGN(const std::vector<FilePart> parts, PlanParts(extents, at, kMostCopyBytes));
    ExpectParts(parts, at);
  }
}

TEST(FilePartsTest, HugeFilesHaveFewEnoughParts) {
  constexpr int64_t kExtentBytes = 6 * kMiB;
  std::vector<Extent> extents;
  for (int i = 0; i < 60'000; ++i)
    extents.push_back({absl::StrCat("o", i % 2), 0, i * kExtentBytes, kExtentBytes});
  ASSERT_OK_AND_ASSIGN(const std::vector<FilePart> parts,
                       PlanParts(extents, 60'000 * kExtentBytes, kMostCopyBytes));
  EXPECT_LE(parts.size(), kMostParts);
  EXPECT_THAT(PlanParts({}, kMaxFileBytes + 1, kMostCopyBytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_file_bytes")));
}

TEST(FilePartsTest, BytesThatAreMissingOrThereTwiceAreNamed) {
  const auto plan = [](std::vector<Extent> extents, int64_t bytes) {
    return PlanParts(std::move(extents), bytes, kMostCopyBytes).status();
  };
  EXPECT_THAT(plan({{"a", 0, 0, 10}, {"b", 0, 20, 10}}, 30),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("[10, 20) were not written")));
  EXPECT_THAT(plan({{"a", 0, 0, 10}, {"b", 0, 5, 25}}, 30),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("[5, 10) were written by two")));
  EXPECT_THAT(plan({{"a", 0, 0, 10}}, 30),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("[10, 30) were not written")));
  EXPECT_THAT(plan({{"a", 0, 0, 40}}, 30),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("past its end")));
  EXPECT_THAT(plan({}, 1), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("[0, 1)")));
  EXPECT_OK(plan({}, 0));
}

TEST(FilePartsTest, ListsAreReadBackAndDamagedOnesRefused) {
  const std::vector<Extent> extents = {{"", 0, 100, 10}, {"", 10, 110, 10}, {"", 20, 300, 5}};
  ASSERT_OK_AND_ASSIGN(const std::vector<Extent> read, DecodeExtents(EncodeExtents(extents), "k"));
  ASSERT_EQ(read.size(), 2) << "the first two follow each other";
  EXPECT_EQ(read[0].key, "k");
  EXPECT_EQ(read[0].file_at_bytes, 100);
  EXPECT_EQ(read[0].size_bytes, 20);
  EXPECT_EQ(read[1].object_at_bytes, 20);
  for (const char* text :
       {"", "[]", "{}", R"({"ranges": 1})", R"({"ranges": [[1, 2]]})",
        R"({"ranges": [[1, 2, -3]]})", R"({"ranges": [[1, 2, 3.5]]})",
        R"({"ranges": [[1, 2, "3"]]})", R"({"ranges": [[1, 2, 18446744073709551615]]})",
        R"({"ranges": [[9223372036854775807, 0, 1]]})", R"({"ranges": [], "ranges": []})"}) {
    EXPECT_THAT(DecodeExtents(text, "k"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")))
        << text;
  }
}

}  // namespace
}  // namespace tessera::s3
