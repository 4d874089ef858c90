// Descriptors and places of state, from real regions; the test is the executors and the client.
#include "worker/keeper/state_map.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "job/live_tensors.h"
#include "shm/buffer_memory.h"
#include "worker/executor/executor_memory.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kWorldSize = 3;

class StateMapTest : public testing::Test {
 protected:
  void SetUp() override {
    ModelSpec model;
    model.units.push_back(
        {"root", {{"a", {70}, DType::kFp32}, {"frozen", {3}, DType::kFp32, false}}});
    model.units.push_back({"u", {{"b", {50, 4}, DType::kFp64}, {"empty", {0}, DType::kFp64}}});
    model.buffers = {{"count", StoredDType::kI64, {}},
                     {"none", StoredDType::kBool, {0}},
                     {"table", StoredDType::kI16, {1000}}};
    JobConfig config;
    config.world_size = kWorldSize;
    config.groups[0].learning_rate = 0.5;
    v1::Job job;
    job.set_job_id("toy");
    *job.mutable_model() = EncodeModel(model);
    *job.mutable_config() = EncodeJobConfig(config);
    for (int rank = 0; rank < kWorldSize; ++rank) {
      v1::RankPlacement* placement = job.add_placements();
      placement->set_rank(rank);
      placement->set_worker_id("w");
    }
    auto regions = JobRegions::Create(job, *LocalRanksOf(job, "w"));
    ASSERT_OK(regions);
    regions_ = std::make_unique<JobRegions>(*std::move(regions));
    memory_ = *JobMemory::Create(regions_->layout(), regions_->config());
    request_.parameters = {0, 1, 2, 3};
    request_.moments = true;
    request_.buffers = {0, 1, 2};
    regions_->group()->initialized.store(1);
    for (int rank = 0; rank < kWorldSize; ++rank) PublishApplied(regions_->group(), rank, 4);
  }
  std::unique_ptr<JobRegions> regions_;
  JobMemory memory_;
  MapRequest request_;
};

// Each byte of either version is marked where an executor would write it, by what it is of.
TEST_F(StateMapTest, PlacesAreWhereExecutorsWriteAndNoTwoSlicesShareAny) {
  ASSERT_OK_AND_ASSIGN(const PlacedState placed, PlaceState(*regions_, request_));
  const v1::LiveMapGiven& given = placed.places;
  ASSERT_EQ(placed.regions.size(), 1u + kWorldSize);
  std::vector<Mapping> shown;
  for (const UniqueFd& region : placed.regions)
    shown.push_back(*Mapping::CreateWhole(region.get(), Access::kReadOnly));
  const auto tensors = *LiveTensors(regions_->layout(), regions_->config().optimizer,
                                    request_.parameters, true, request_.buffers);
  int next = 0;
  ASSERT_OK(
      ForEachLiveSlice(regions_->layout(), tensors, 0, kWorldSize, [&](const LiveSlice& slice) {
        if (slice.numel == 0) return absl::OkStatus();
        const LiveTensor& tensor = tensors[slice.tensor];
        const v1::LiveMapSlice& place = given.slices(next++);
        EXPECT_EQ(place.tensor(), slice.tensor);
        for (const int version : {0, 1}) {
          const int64_t at = version == 0 ? place.even_offset_bytes() : place.odd_offset_bytes();
          if (tensor.array == LiveArray::kBuffer) {
            auto group = *Mapping::CreateWhole(regions_->group_fd(), Access::kReadWrite);
            const BufferBank bank(&memory_.buffers(), group.data() +
                                                          BufferSlotsOffsetBytes(memory_, 0) +
                                                          version * memory_.buffers().bank_bytes());
            EXPECT_EQ(bank.values(tensor.job_parameter) - group.data(), at);
            EXPECT_EQ(place.region(), 0);
            EXPECT_EQ(place.size_bytes(), bank.size_bytes(tensor.job_parameter));
            continue;
          }
          auto state =
              *Mapping::CreateWhole(regions_->state_fd(Rank(slice.rank)), Access::kReadWrite);
          const UnitMemory& unit = memory_.units()[tensor.unit];
          const int64_t element_bytes = SizeBytes(unit.full_dtype);
          std::byte* const from =
              state.data() +
              memory_.StateOffsetBytes(static_cast<StateArray>(tensor.array), version) +
              unit.shard_offset_bytes + slice.shard_begin_elements * element_bytes;
          EXPECT_EQ(place.size_bytes(), slice.numel * element_bytes);
          for (int64_t i = 0; i < place.size_bytes(); ++i) {
            EXPECT_EQ(from[i], std::byte{0}) << "another slice has it";
            from[i] = static_cast<std::byte>(1 + next);
            EXPECT_EQ(shown[place.region()].data()[at + i], static_cast<std::byte>(1 + next));
          }
        }
        return absl::OkStatus();
      }));
  EXPECT_EQ(next, given.slices_size());
  // The words are the ranks', too.
  ASSERT_EQ(given.ranks_size(), kWorldSize);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    RankRecord& record = regions_->group()->ranks[rank];
    record.applied_step.store(100 + rank);
    record.hold.writing.store(200 + rank);
    const auto word = [&](int64_t offset) {
      return *reinterpret_cast<const int64_t*>(shown[0].data() + offset);
    };
    EXPECT_EQ(word(given.ranks(rank).applied_offset_bytes()), 100 + rank);
    EXPECT_EQ(word(given.ranks(rank).writing_offset_bytes()), 200 + rank);
  }
}

TEST_F(StateMapTest, NumbersOfEachVersionAreWhereTheyAreDecided) {
  request_.parameters = {0, 2};
  for (const int64_t step : {4, 5}) {
    const auto s = static_cast<uint32_t>(step);
    regions_->update_counts().Set(step, {s, 0, s - 1, 0});
    Decision& decision = regions_->group()->decisions[step % 2];
    decision.trained_step.store(step + 100);
    decision.groups[0].learning_rate.store(1.0 / static_cast<double>(step));
    decision.groups[0].momentum.store(static_cast<double>(step));
  }
  ASSERT_OK_AND_ASSIGN(const PlacedState placed, PlaceState(*regions_, request_));
  const v1::LiveMapGiven& given = placed.places;
  EXPECT_THAT(given.parameters(), ElementsAre(0, 2));
  ASSERT_EQ(given.own_groups_size(), 1);
  EXPECT_EQ(DecodeHyperParameters(given.own_groups(0)).learning_rate, 0.5);
  const Mapping group = *Mapping::CreateWhole(placed.regions[0].get(), Access::kReadOnly);
  for (const int64_t step : {4, 5}) {
    const v1::LiveMapNumbers& numbers = step % 2 == 0 ? given.even() : given.odd();
    const auto at = [&](int64_t offset) { return group.data() + offset; };
    EXPECT_EQ(*reinterpret_cast<const int64_t*>(at(numbers.trained_step_offset_bytes())),
              step + 100);
    const auto* counts =
        reinterpret_cast<const uint32_t*>(at(numbers.update_counts_offset_bytes()));
    EXPECT_EQ(counts[0], step);
    EXPECT_EQ(counts[2], step - 1);
    const auto* values = reinterpret_cast<const double*>(at(numbers.groups_offset_bytes()));
    EXPECT_EQ(values[0], 1.0 / static_cast<double>(step));
    EXPECT_EQ(values[5], static_cast<double>(step));
  }
}

TEST_F(StateMapTest, WhatIsNotThereIsRefused) {
  MapRequest request = request_;
  request.parameters = {4};
  EXPECT_THAT(CheckMappable(*regions_, request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  request = request_;
  request.buffers = {2, 1};
  EXPECT_THAT(PlaceState(*regions_, request).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  regions_->group()->initialized.store(0);
  EXPECT_THAT(PlaceState(*regions_, request_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no values yet")));
}

}  // namespace
}  // namespace tessera
