#include "worker/executor/executor_puts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "checkpoint/safetensors/crc32.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/live_tensors.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

// A put of elements 3 to 6 of parameter 1, as its worker has it in a file.
class ExecutorPutsTest : public testing::Test {
 protected:
  static constexpr uint64_t kPut = 77;

  void SetUp() override {
    std::string path = testing::TempDir() + "/put-XXXXXX";
    file_.Reset(mkstemp(path.data()));
    ASSERT_TRUE(file_.valid());
    unlink(path.c_str());
    ASSERT_EQ(pwrite(file_.get(), values_.data(), 12, 0), 12);
    v1::PutManifest::Range* range = manifest_.add_ranges();
    range->set_job_parameter(1);
    range->set_begin_elements(3);
    range->set_numel(3);
    range->set_crc32(Crc32(values_.data(), 12));
  }
  void Give(uint64_t put = kPut) {
    const std::string bytes = manifest_.SerializeAsString();
    ASSERT_EQ(pwrite(file_.get(), bytes.data(), bytes.size(), 12),
              static_cast<ssize_t>(bytes.size()));
    v1::ExecutorPut command;
    command.set_put(put);
    command.set_manifest_offset_bytes(12);
    command.set_manifest_size_bytes(static_cast<int64_t>(bytes.size()));
    puts_.Give(command, UniqueFd(fcntl(file_.get(), F_DUPFD_CLOEXEC, 0)));
  }
  // What a rank with elements [begin, begin + 3) of parameter 1 reads.
  absl::StatusOr<std::vector<float>> Read(int64_t begin = 3) {
    ShardSegment segment;
    segment.job_parameter = 1;
    segment.parameter_begin_elements = begin;
    segment.numel = 3;
    std::vector<float> into(3, 0.0f);
    const absl::Status read = puts_.Read(
        {segment}, [&](StateArray, const ShardSegment&) { return Values(absl::MakeSpan(into)); });
    if (!read.ok()) return read;
    return into;
  }

  const std::vector<float> values_ = {1.5f, 2.5f, 3.5f};
  UniqueFd file_;
  v1::PutManifest manifest_;
  std::vector<std::pair<uint64_t, std::string>> gone_;
  const std::vector<BufferSpec> buffers_ = {{"count", StoredDType::kI64, {}},
                                            {"table", StoredDType::kI16, {2, 3}}};
  ExecutorPuts puts_{2, &buffers_, [this](uint64_t put, const std::string& failure) {
                       gone_.emplace_back(put, failure);
                     }};
};

TEST_F(ExecutorPutsTest, IsOfferedUntilItIsDecided) {
  EXPECT_EQ(puts_.Offer(0), 0u);
  Give();
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(puts_.Offer(0), kPut);
    puts_.Settle(PutSource::Outcome::kNotYet, "");
  }
  EXPECT_EQ(puts_.Offer(0), kPut);
  ASSERT_OK_AND_ASSIGN(const std::vector<float> read, Read());
  EXPECT_EQ(read, values_);
  EXPECT_THAT(gone_, IsEmpty());
  puts_.Settle(PutSource::Outcome::kDecided, "");
  EXPECT_EQ(puts_.Offer(0), 0u);
  EXPECT_THAT(gone_, ElementsAre(Pair(kPut, "")));
}

TEST_F(ExecutorPutsTest, OneThatWasDecidedInAnEpochThatEndedIsNotOfferedAgain) {
  Give();
  EXPECT_EQ(puts_.Offer(0), kPut);
  puts_.EndEpoch();
  EXPECT_THAT(gone_, IsEmpty());
  EXPECT_EQ(puts_.Offer(kPut), 0u);
  EXPECT_THAT(gone_, ElementsAre(Pair(kPut, "")));
}

TEST_F(ExecutorPutsTest, DropIsAnsweredOnceNoVoteIsUnderWay) {
  Give();
  EXPECT_EQ(puts_.Offer(0), kPut);
  puts_.Drop(kPut);
  EXPECT_THAT(gone_, IsEmpty());
  puts_.Settle(PutSource::Outcome::kNotYet, "");
  EXPECT_THAT(gone_, ElementsAre(Pair(kPut, "")));
  EXPECT_EQ(puts_.Offer(0), 0u);

  Give();
  EXPECT_EQ(puts_.Offer(0), kPut);
  puts_.Drop(kPut);
  puts_.EndEpoch();
  EXPECT_THAT(gone_, ElementsAre(Pair(kPut, ""), Pair(kPut, "")));

  Give();
  puts_.Drop(kPut);
  puts_.Drop(kPut + 1);  // That it never had.
  EXPECT_EQ(gone_.size(), 4u);
  EXPECT_EQ(puts_.Offer(0), 0u);
}

TEST_F(ExecutorPutsTest, NewerOneTakesThePlaceOfAnotherButNotWithinAVote) {
  Give();
  Give(kPut + 1);
  EXPECT_THAT(gone_, ElementsAre(Pair(kPut, HasSubstr("took its place"))));
  EXPECT_EQ(puts_.Offer(0), kPut + 1);
  Give(kPut + 2);
  EXPECT_THAT(gone_.back(), Pair(kPut + 2, HasSubstr("voting for another")));
  puts_.Settle(PutSource::Outcome::kVoid, "cannot be read");
  EXPECT_THAT(gone_.back(), Pair(kPut + 1, "cannot be read"));
}

TEST_F(ExecutorPutsTest, ValuesThatWereChangedOnDiskAreDataLoss) {
  Give();
  EXPECT_EQ(puts_.Offer(0), kPut);
  ASSERT_EQ(pwrite(file_.get(), "x", 1, 5), 1);
  EXPECT_THAT(Read().status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("parameter 1")));
}

TEST_F(ExecutorPutsTest, RankWhosePartWasNotStoredIsToldSo) {
  Give();
  EXPECT_EQ(puts_.Offer(0), kPut);
  EXPECT_THAT(Read(6).status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("element 6")));
}

TEST_F(ExecutorPutsTest, BuffersAreReadWholeAndCheckedAgainstTheirSum) {
  v1::PutManifest::Range* range = manifest_.mutable_ranges(0);
  range->set_array(static_cast<int>(LiveArray::kBuffer));
  range->set_begin_elements(0);
  range->set_numel(6);
  Give();
  EXPECT_EQ(puts_.Offer(0), kPut);
  EXPECT_THAT(puts_.buffers(), ElementsAre(1));
  std::vector<float> read(3);
  EXPECT_OK(puts_.ReadBuffer(1, reinterpret_cast<std::byte*>(read.data())));
  EXPECT_EQ(read, values_);
  ASSERT_OK_AND_ASSIGN(const std::vector<float> parameter, Read());
  EXPECT_EQ(parameter, std::vector<float>(3, 0.0f)) << "it sets none";
  ASSERT_EQ(pwrite(file_.get(), "x", 1, 5), 1);
  EXPECT_THAT(puts_.ReadBuffer(1, reinterpret_cast<std::byte*>(read.data())),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("buffer 'table'")));
}

TEST_F(ExecutorPutsTest, PartOfABufferOrOneThatThereIsNotIsRefused) {
  v1::PutManifest::Range* range = manifest_.mutable_ranges(0);
  range->set_array(static_cast<int>(LiveArray::kBuffer));
  uint64_t put = kPut;
  for (const auto& [buffer, begin, numel] :
       std::vector<std::tuple<int, int, int>>{{1, 0, 5}, {1, 1, 6}, {2, 0, 6}, {-1, 0, 6}}) {
    range->set_job_parameter(buffer);
    range->set_begin_elements(begin);
    range->set_numel(numel);
    Give(++put);
    EXPECT_THAT(gone_.back(), Pair(put, HasSubstr("of another job")));
  }
}

TEST_F(ExecutorPutsTest, ManifestOfAnotherJobIsRefused) {
  manifest_.mutable_ranges(0)->set_job_parameter(2);
  Give();
  EXPECT_THAT(gone_, ElementsAre(Pair(kPut, HasSubstr("of another job"))));
  EXPECT_EQ(puts_.Offer(0), 0u);
  puts_.Give({}, UniqueFd());
  EXPECT_THAT(gone_.back(), Pair(0, HasSubstr("without a file")));
}

TEST_F(ExecutorPutsTest, CountOfUpdatesThatTheGroupPageCannotHoldIsRefused) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  (*manifest_.mutable_update_counts())[1] = kMost + 1;
  Give();
  EXPECT_THAT(gone_, ElementsAre(Pair(kPut, HasSubstr("of another job"))));
  EXPECT_EQ(puts_.Offer(0), 0u);
  (*manifest_.mutable_update_counts())[1] = kMost;
  Give(kPut + 1);
  EXPECT_EQ(puts_.Offer(0), kPut + 1);
  EXPECT_EQ(puts_.update_counts().at(1), kMost);
}

}  // namespace
}  // namespace tessera
