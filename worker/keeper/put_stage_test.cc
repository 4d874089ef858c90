// A worker's part of a put, from real regions; the test is the coordinator.
#include "worker/keeper/put_stage.h"

#include <unistd.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/crc32.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class PutStageTest : public testing::Test {
 protected:
  // Worker "w" has both ranks, or the second of them.
  void Make(bool both = true) {
    v1::Job job;
    ModelSpec model;
    model.units.push_back({"root", {{"a", {20}}, {"b", {3}, DType::kFp32, false}}});
    model.buffers = {{"mask", StoredDType::kBool, {3}}, {"table", StoredDType::kI16, {2, 3}}};
    JobConfig config;
    config.world_size = 2;
    config.layout.shard_alignment_bytes = 0;
    job.set_job_id("toy");
    *job.mutable_model() = EncodeModel(model);
    *job.mutable_config() = EncodeJobConfig(config);
    for (int rank = 0; rank < 2; ++rank) {
      v1::RankPlacement* placement = job.add_placements();
      placement->set_rank(rank);
      placement->set_worker_id(both || rank == 1 ? "w" : "v");
    }
    auto regions = JobRegions::Create(job, *LocalRanksOf(job, "w"));
    ASSERT_OK(regions);
    regions_ = std::make_unique<JobRegions>(*std::move(regions));
    regions_->group()->initialized.store(1);
    request_.set_put(7);
    AddSlot(0, v1::LIVE_STATE_ARRAY_PARAMETER, v1::DTYPE_FP64);
  }
  v1::PutSlot* AddSlot(int parameter, v1::LiveStateArray array, v1::DType dtype) {
    v1::PutSlot* slot = request_.add_slots();
    slot->set_job_parameter(parameter);
    slot->set_array(array);
    slot->set_dtype(dtype);
    return slot;
  }
  absl::StatusOr<std::unique_ptr<PutStage>> Create() {
    return PutStage::Create(*regions_, request_, testing::TempDir());
  }
  static v1::LivePiece Piece(int64_t offset, const std::vector<double>& values) {
    v1::LivePiece piece;
    piece.set_offset_elements(offset);
    piece.set_data(values.data(), values.size() * sizeof(double));
    return piece;
  }

  std::unique_ptr<JobRegions> regions_;
  v1::PutStage request_;
};

TEST_F(PutStageTest, KeepsTheRangesOfItsRanksInTheStatesDTypeWithTheirSums) {
  Make(/*both=*/false);
  const ElementRange slice = regions_->layout().units[0].shards.RangeOf(Rank(1));
  const int64_t begin = slice.begin, count = 20 - begin;
  ASSERT_GT(count, 1) << "the second rank has the end of it";
  ASSERT_OK_AND_ASSIGN(auto stage, Create());
  EXPECT_THAT(stage->Seal().status(), StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> rest(count - 1, 1.0 + 1e-12);  // Rounded.
  ASSERT_OK(stage->Take(Piece(begin, {infinity})));
  ASSERT_OK(stage->Take(Piece(begin + 1, rest)));
  ASSERT_OK_AND_ASSIGN(const auto staged, stage->Seal());
  std::vector<float> expected(count, 1.0f);
  expected[0] = std::numeric_limits<float>::infinity();
  std::vector<float> stored(count);
  ASSERT_EQ(pread(staged->file.fd(), stored.data(), count * 4, 0), count * 4);
  EXPECT_EQ(stored, expected);
  std::string bytes(staged->manifest_size_bytes, 0);
  ASSERT_OK(
      staged->file.Read(staged->manifest_offset_bytes, bytes.data(), staged->manifest_size_bytes));
  v1::PutManifest manifest;
  ASSERT_TRUE(manifest.ParseFromString(bytes));
  ASSERT_EQ(manifest.ranges_size(), 1);
  EXPECT_EQ(manifest.ranges(0).begin_elements(), begin);
  EXPECT_EQ(manifest.ranges(0).numel(), count);
  EXPECT_EQ(manifest.ranges(0).crc32(), Crc32(expected.data(), count * 4));
  EXPECT_EQ(staged->put, 7u);
}

// In its own dtype, and whole for each worker: each rank's trainer gets it.
TEST_F(PutStageTest, KeepsABufferAsItComes) {
  Make(/*both=*/false);
  request_.clear_slots();
  AddSlot(1, v1::LIVE_STATE_ARRAY_BUFFER, v1::DTYPE_UNSPECIFIED);
  ASSERT_OK_AND_ASSIGN(auto stage, Create());
  const std::string bytes = "0123456789ab";
  v1::LivePiece piece;
  piece.set_data(bytes.substr(0, 5));
  EXPECT_FALSE(stage->Take(piece).ok()) << "no whole elements";
  piece.set_data(bytes.substr(0, 4));
  ASSERT_OK(stage->Take(piece));
  piece.set_offset_elements(2);
  piece.set_data(bytes.substr(4));
  ASSERT_OK(stage->Take(piece));
  EXPECT_FALSE(stage->Take(piece).ok()) << "there are no more";
  ASSERT_OK_AND_ASSIGN(const auto staged, stage->Seal());
  std::string stored(bytes.size(), 0);
  ASSERT_OK(staged->file.Read(0, stored.data(), stored.size()));
  EXPECT_EQ(stored, bytes);
  std::string manifest_bytes(staged->manifest_size_bytes, 0);
  ASSERT_OK(staged->file.Read(staged->manifest_offset_bytes, manifest_bytes.data(),
                              staged->manifest_size_bytes));
  v1::PutManifest manifest;
  ASSERT_TRUE(manifest.ParseFromString(manifest_bytes));
  ASSERT_EQ(manifest.ranges_size(), 1);
  EXPECT_EQ(manifest.ranges(0).array(), static_cast<int>(LiveArray::kBuffer));
  EXPECT_EQ(manifest.ranges(0).job_parameter(), 1);
  EXPECT_EQ(manifest.ranges(0).numel(), 6);
  EXPECT_EQ(manifest.ranges(0).crc32(), Crc32(bytes.data(), bytes.size()));
}

TEST_F(PutStageTest, ElementsThatDoNotFollowAreRefused) {
  Make();
  const int64_t split = regions_->layout().units[0].shards.RangeOf(Rank(0)).end;
  for (const v1::LivePiece& wrong :
       {Piece(1, {1}), Piece(-1, {1}), Piece(0, {}), Piece(0, std::vector<double>(split + 1)),
        Piece(0, std::vector<double>(PutStage::kMaxPieceBytes / 8 + 1))}) {
    ASSERT_OK_AND_ASSIGN(auto stage, Create());
    EXPECT_THAT(stage->Take(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("do not follow")));
  }
  v1::LivePiece torn = Piece(0, {1});
  torn.mutable_data()->pop_back();
  ASSERT_OK_AND_ASSIGN(auto stage, Create());
  EXPECT_FALSE(stage->Take(torn).ok());
}

TEST_F(PutStageTest, WhatTheJobDoesNotHaveIsRefused) {
  Make();
  const v1::PutStage right = request_;
  const auto refusal = [&] {
    const absl::Status status = Create().status();
    request_ = right;
    EXPECT_FALSE(status.ok());
    return status.ToString();
  };
  request_.set_put(0);
  EXPECT_THAT(refusal(), HasSubstr("without a number"));
  AddSlot(2, v1::LIVE_STATE_ARRAY_PARAMETER, v1::DTYPE_FP32);
  EXPECT_THAT(refusal(), HasSubstr("parameter 2 does not exist"));
  for (const int buffer : {-1, 2}) {
    AddSlot(buffer, v1::LIVE_STATE_ARRAY_BUFFER, v1::DTYPE_UNSPECIFIED);
    EXPECT_THAT(refusal(), HasSubstr(absl::StrCat("buffer ", buffer, " does not exist")));
  }
  AddSlot(1, v1::LIVE_STATE_ARRAY_FIRST_MOMENT, v1::DTYPE_FP32);
  EXPECT_THAT(refusal(), HasSubstr("is frozen"));
  AddSlot(0, v1::LIVE_STATE_ARRAY_UNSPECIFIED, v1::DTYPE_FP32);
  EXPECT_THAT(refusal(), HasSubstr("no array"));
  AddSlot(1, v1::LIVE_STATE_ARRAY_PARAMETER, v1::DTYPE_INT64);
  EXPECT_THAT(refusal(), HasSubstr("elements of int64"));
  AddSlot(0, v1::LIVE_STATE_ARRAY_FIRST_MOMENT, v1::DTYPE_FP32)->set_update_count(-1);
  EXPECT_THAT(refusal(), HasSubstr("count of updates"));
  regions_->group()->initialized.store(0);
  EXPECT_THAT(refusal(), HasSubstr("no values yet"));
}

}  // namespace
}  // namespace tessera
