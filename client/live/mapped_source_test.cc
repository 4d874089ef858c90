// What a client makes of the memory and the places that a worker gives it. The worker is the test,
// which means no good.
#include "client/live/mapped_source.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shm/fd_passing.h"
#include "shm/region.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRegionBytes = 8192;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

// Of a group and a state, each of kRegionBytes.
v1::LiveMapGiven GoodPlaces() {
  v1::LiveMapGiven given;
  for (const int64_t parameter : {0, 2}) given.add_parameters(parameter);
  given.add_own_groups();
  for (v1::LiveMapNumbers* numbers : {given.mutable_even(), given.mutable_odd()}) {
    numbers->set_trained_step_offset_bytes(kRegionBytes - 8);
    numbers->set_update_counts_offset_bytes(kRegionBytes - 12);
    numbers->set_groups_offset_bytes(kRegionBytes - 48);
  }
  given.mutable_odd()->set_trained_step_offset_bytes(16);
  v1::LiveMapRank* rank = given.add_ranks();
  rank->set_applied_offset_bytes(0);
  rank->set_writing_offset_bytes(kRegionBytes - 8);
  v1::LiveMapSlice* slice = given.add_slices();
  slice->set_region(1);
  slice->set_even_offset_bytes(0);
  slice->set_odd_offset_bytes(kRegionBytes - 100);
  slice->set_size_bytes(100);
  return given;
}

TEST(CheckPlacesTest, PlacesAtTheVeryEndsAreGood) {
  EXPECT_OK(CheckPlaces(GoodPlaces(), {kRegionBytes, kRegionBytes}));
}

TEST(CheckPlacesTest, WhateverIsOutsideOfARegionIsRefused) {
  const std::vector<int64_t> sizes = {kRegionBytes, kRegionBytes};
  const auto expect_refused = [](const v1::LiveMapGiven& given, const std::vector<int64_t>& of) {
    EXPECT_THAT(CheckPlaces(given, of), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")))
        << given.ShortDebugString();
  };
  expect_refused(GoodPlaces(), {});
  expect_refused(GoodPlaces(), {kRegionBytes});
  expect_refused(GoodPlaces(), {0, kRegionBytes});
  expect_refused(GoodPlaces(), {kRegionBytes, kRegionBytes - 1});
  expect_refused(GoodPlaces(), {kRegionBytes, kRegionBytes, 0});
  expect_refused(GoodPlaces(), {kRegionBytes, kRegionBytes, -1});
  for (const int64_t offset : {int64_t{-8}, int64_t{-1}, int64_t{4}, kRegionBytes - 4, kRegionBytes,
                               kMost, kMost - 7, kLeast}) {
    v1::LiveMapGiven given = GoodPlaces();
    given.mutable_ranks(0)->set_applied_offset_bytes(offset);
    expect_refused(given, sizes);
    given = GoodPlaces();
    given.mutable_ranks(0)->set_writing_offset_bytes(offset);
    expect_refused(given, sizes);
  }
  for (const int64_t offset :
       {int64_t{-1}, kRegionBytes - 99, kRegionBytes, kMost, kMost - 99, kLeast}) {
    v1::LiveMapGiven given = GoodPlaces();
    given.mutable_slices(0)->set_even_offset_bytes(offset);
    expect_refused(given, sizes);
    given = GoodPlaces();
    given.mutable_slices(0)->set_odd_offset_bytes(offset);
    expect_refused(given, sizes);
  }
  for (const int64_t size :
       {int64_t{-1}, int64_t{0}, int64_t{101}, kRegionBytes + 1, kMost, kLeast}) {
    v1::LiveMapGiven given = GoodPlaces();
    given.mutable_slices(0)->set_size_bytes(size);
    expect_refused(given, sizes);
  }
  for (const int region : {-1, 2, std::numeric_limits<int>::max()}) {
    v1::LiveMapGiven given = GoodPlaces();
    given.mutable_slices(0)->set_region(region);
    expect_refused(given, sizes);
  }
  for (const int64_t offset : {int64_t{-48}, int64_t{-1}, int64_t{2}, kRegionBytes - 4,
                               kRegionBytes, kMost, kMost - 7, kLeast}) {
    for (const bool even : {false, true}) {
      const auto with = [&](const std::function<void(v1::LiveMapNumbers*)>& change) {
        v1::LiveMapGiven given = GoodPlaces();
        change(even ? given.mutable_even() : given.mutable_odd());
        return given;
      };
      expect_refused(with([&](auto* numbers) { numbers->set_trained_step_offset_bytes(offset); }),
                     sizes);
      expect_refused(with([&](auto* numbers) { numbers->set_update_counts_offset_bytes(offset); }),
                     sizes);
      expect_refused(with([&](auto* numbers) { numbers->set_groups_offset_bytes(offset); }), sizes);
    }
  }
  for (const int parameter :
       {-1, 3, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    v1::LiveMapGiven given = GoodPlaces();
    given.set_parameters(1, parameter);
    expect_refused(given, sizes);
  }
  v1::LiveMapGiven given = GoodPlaces();
  given.clear_ranks();
  expect_refused(given, sizes);
  given = GoodPlaces();
  given.add_own_groups();
  expect_refused(given, sizes);
}

class MappedSourceTest : public testing::Test {
 protected:
  void SetUp() override {
    group_ = NewRegion();
    state_ = NewRegion();
    ASSERT_OK_AND_ASSIGN(words_, Mapping::CreateWhole(group_.get(), Access::kReadWrite));
  }
  static UniqueFd NewRegion() {
    auto region = SharedRegion::Create("region", kRegionBytes);
    EXPECT_OK(region.status());
    return std::move(*region).TakeFd();
  }
  static absl::StatusOr<std::unique_ptr<MappedSource>> MapOf(const v1::LiveMapGiven& given,
                                                             const std::vector<int>& fds) {
    std::vector<UniqueFd> regions;
    for (const int fd : fds) regions.emplace_back(dup(fd));
    return MappedSource::Map(given, regions);
  }
  std::atomic<int64_t>& Word(int64_t offset_bytes) {
    return *reinterpret_cast<std::atomic<int64_t>*>(words_.data() + offset_bytes);
  }
  void ExpectDataLoss(const std::vector<int>& fds, const std::string& why) {
    EXPECT_THAT(MapOf(GoodPlaces(), fds).status(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(why)));
  }

  UniqueFd group_, state_;
  Mapping words_;
};

TEST_F(MappedSourceTest, ShowsTheSlicesOfAVersionAndWhetherItStands) {
  ASSERT_OK_AND_ASSIGN(const Mapping state, Mapping::CreateWhole(state_.get(), Access::kReadWrite));
  memset(state.data(), 'e', 100);
  memset(state.data() + kRegionBytes - 100, 'o', 100);
  ASSERT_OK_AND_ASSIGN(const auto mapped, MapOf(GoodPlaces(), {group_.get(), state_.get()}));
  EXPECT_EQ(mapped->Slice(0, 4), std::string(100, 'e'));
  EXPECT_EQ(mapped->Slice(0, 5), std::string(100, 'o'));
  EXPECT_FALSE(mapped->IsWhole(4));
  EXPECT_EQ(mapped->Newest(), 0);
  Word(0).store(4);
  EXPECT_TRUE(mapped->IsWhole(4));
  EXPECT_EQ(mapped->Newest(), 4);
  EXPECT_FALSE(mapped->IsWhole(5));
  Word(kRegionBytes - 8).store(5);
  EXPECT_TRUE(mapped->Stands(4));
  Word(kRegionBytes - 8).store(6);
  EXPECT_FALSE(mapped->Stands(4));
  EXPECT_TRUE(mapped->Stands(5));
}

TEST_F(MappedSourceTest, WhatIsNotAsItSaysIsRefusedBeforeItIsTouched) {
  ExpectDataLoss({}, "no words");
  ExpectDataLoss({group_.get()}, "of region 1");
  // Memory that its sender can make smaller: a look at it might end this process.
  const UniqueFd shrinks(memfd_create("shrinks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(shrinks.get(), kRegionBytes), 0);
  ExpectDataLoss({group_.get(), shrinks.get()}, "may shrink");
  ExpectDataLoss({shrinks.get(), state_.get()}, "may shrink");
  const UniqueFd empty(memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  ExpectDataLoss({group_.get(), state_.get(), empty.get()}, "an empty region");
  ASSERT_OK_AND_ASSIGN(const SharedRegion small, SharedRegion::Create("small", 50));
  ExpectDataLoss({group_.get(), small.fd()}, "of 50 bytes");
  ASSERT_OK_AND_ASSIGN(const auto pair, CreatePacketSocketPair());
  ExpectDataLoss({group_.get(), pair.first.get()}, "not memory");
}

TEST_F(MappedSourceTest, NumbersOfAVersionThatWasTrainedAreThoseAndElseTheJobsOwn) {
  v1::LiveMapGiven given = GoodPlaces();
  given.mutable_own_groups(0)->set_learning_rate(0.5);
  for (v1::LiveMapNumbers* numbers : {given.mutable_even(), given.mutable_odd()}) {
    numbers->set_update_counts_offset_bytes(64);
    numbers->set_groups_offset_bytes(128);
  }
  given.mutable_even()->set_trained_step_offset_bytes(8);
  ASSERT_OK_AND_ASSIGN(const auto mapped, MapOf(given, {group_.get(), state_.get()}));
  const uint32_t counts[] = {7, 8, 9};
  memcpy(words_.data() + 64, counts, sizeof(counts));
  const double values[] = {1, 2, 3, 4, 5, 6};
  memcpy(words_.data() + 128, values, sizeof(values));
  Word(16).store(33);
  const MappedNumbers odd = mapped->Numbers(5);
  EXPECT_EQ(odd.trained_step, 33);
  EXPECT_EQ(odd.update_counts, (std::vector<int64_t>{7, 9}));
  ASSERT_EQ(odd.groups.size(), 1u);
  EXPECT_EQ(odd.groups[0].learning_rate, 1);
  EXPECT_EQ(odd.groups[0].beta1, 2);
  EXPECT_EQ(odd.groups[0].beta2, 3);
  EXPECT_EQ(odd.groups[0].epsilon, 4);
  EXPECT_EQ(odd.groups[0].weight_decay, 5);
  EXPECT_EQ(odd.groups[0].momentum, 6);
  const MappedNumbers even = mapped->Numbers(0);
  EXPECT_EQ(even.trained_step, 0);
  EXPECT_EQ(even.groups[0].learning_rate, 0.5);
}

}  // namespace
}  // namespace tessera
