// Slices of a job that is handed over, from real regions; the test is the executors.
#include "worker/keeper/frozen_state.h"

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "base/status_matchers.h"
#include "checkpoint/safetensors/crc32.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "shm/buffer_memory.h"
#include "worker/engine/state_hold.h"
#include "worker/executor/executor_memory.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLarge = 200'000;  // Of more than one piece.
constexpr int kTable = 200'000;      // The same.
constexpr absl::Duration kPatience = absl::Seconds(20);
bool Never() { return false; }

float ValueAt(int rank, int array, int64_t step, int64_t i) {
  return static_cast<float>(rank * 1000 + array * 100 + step) + static_cast<float>(i % 997) / 1024;
}

class FrozenStateTest : public testing::Test {
 protected:
  void SetUp() override {
    v1::Job job;
    ModelSpec model;
    model.units = {{"root", {{"a", {70}, DType::kFp32}}}, {"u", {{"b", {kLarge}, DType::kFp32}}}};
    model.buffers = {{"count", StoredDType::kI64, {}}, {"table", StoredDType::kI16, {kTable}}};
    JobConfig config;
    config.world_size = 2;
    job.set_job_id("toy");
    *job.mutable_model() = EncodeModel(model);
    *job.mutable_config() = EncodeJobConfig(config);
    for (int rank = 0; rank < 2; ++rank) {
      v1::RankPlacement* placement = job.add_placements();
      placement->set_rank(rank);
      placement->set_worker_id("w");
    }
    auto regions = JobRegions::Create(job, *LocalRanksOf(job, "w"));
    ASSERT_OK(regions);
    regions_ = std::make_unique<JobRegions>(*std::move(regions));
    memory_ = *JobMemory::Create(regions_->layout(), regions_->config());
    regions_->group()->initialized.store(1);
  }
  void Apply(int rank, int64_t step) {
    const auto mapping = Mapping::CreateWhole(regions_->state_fd(Rank(rank)), Access::kReadWrite);
    for (int a = 0; a < 3; ++a) {
      auto* values = reinterpret_cast<float*>(
          mapping->data() + memory_.StateOffsetBytes(static_cast<StateArray>(a), step % 2));
      for (int64_t i = 0; i < memory_.shard_numel(); ++i) values[i] = ValueAt(rank, a, step, i);
    }
    regions_->update_counts().Set(step, {step, step - 1});
    regions_->group()->decisions[step % 2].trained_step.store(step + 10);
    PublishApplied(regions_->group(), rank, step);
  }
  static v1::LiveRange Range(int rank, int parameter, int array, int64_t begin, int64_t numel) {
    v1::LiveRange range;
    range.set_rank(rank);
    range.set_parameter(parameter);
    range.set_array(static_cast<v1::LiveStateArray>(array + 1));
    range.set_begin_elements(begin);
    range.set_numel(numel);
    return range;
  }

  std::unique_ptr<JobRegions> regions_;
  JobMemory memory_;
};

TEST_F(FrozenStateTest, GivesEachArrayOfAStepInPiecesWithTheirSums) {
  for (int rank : {0, 1}) Apply(rank, 5);
  ASSERT_OK_AND_ASSIGN(const auto state, FrozenState::Create(*regions_, 5));
  ASSERT_OK(state->Await(kPatience, Never));
  EXPECT_EQ(state->Progress().trained_step(), 15);
  EXPECT_EQ(state->Progress().update_counts(0), 5);
  EXPECT_EQ(state->Progress().update_counts(1), 4);
  const int64_t in_shard = memory_.units()[1].shard_offset_elements;
  for (int array : {0, 1, 2}) {
    // Rank 1 has the second half of it, of which this leaves out three at each end.
    const v1::LiveRange range = Range(1, 1, array, kLarge / 2 + 3, kLarge / 2 - 6);
    int64_t done = 0;
    for (int pieces = 0; done < range.numel(); ++pieces) {
      v1::LivePiece piece;
      ASSERT_OK_AND_ASSIGN(const int64_t count, state->Read(range, done, &piece));
      ASSERT_EQ(piece.data().size(), count * sizeof(float));
      ASSERT_LE(piece.data().size(), FrozenState::kMaxPieceBytes);
      EXPECT_EQ(piece.offset_elements(), range.begin_elements() + done);
      EXPECT_EQ(piece.crc32(), Crc32(piece.data()));
      for (int64_t i = 0; i < count; ++i) {
        float value = 0;
        memcpy(&value, piece.data().data() + i * sizeof(value), sizeof(value));
        ASSERT_EQ(value, ValueAt(1, array, 5, in_shard + 3 + done + i));
      }
      done += count;
      EXPECT_LT(pieces, 3);
    }
    EXPECT_EQ(done, range.numel());
  }
}

TEST_F(FrozenStateTest, GivesBuffersOfTheStepAsTheyAre) {
  const auto group = Mapping::CreateWhole(regions_->group_fd(), Access::kReadWrite);
  for (const int64_t step : {4, 5}) {
    for (int rank : {0, 1}) Apply(rank, step);
    const BufferBank slot = {&memory_.buffers(), group->data() +
                                                     BufferSlotsOffsetBytes(memory_, 0) +
                                                     step % 2 * memory_.buffers().bank_bytes()};
    for (int i = 0; i < kTable; ++i)
      reinterpret_cast<int16_t*>(slot.values(1))[i] = static_cast<int16_t>(i + step);
  }
  ASSERT_OK_AND_ASSIGN(const auto state, FrozenState::Create(*regions_, 5));
  ASSERT_OK(state->Await(kPatience, Never));
  std::string bytes;
  const v1::LiveRange range = Range(0, 1, 3, 7, kTable - 7);
  for (int64_t done = 0; done < range.numel();) {
    v1::LivePiece piece;
    ASSERT_OK_AND_ASSIGN(const int64_t count, state->Read(range, done, &piece));
    EXPECT_EQ(piece.crc32(), Crc32(piece.data()));
    bytes += piece.data();
    done += count;
  }
  ASSERT_EQ(bytes.size(), (kTable - 7) * sizeof(int16_t));
  for (int i = 0; i < kTable - 7; ++i) {
    int16_t value = 0;
    memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
    ASSERT_EQ(value, static_cast<int16_t>(i + 7 + 5));
  }
}

TEST_F(FrozenStateTest, RangesThatNoRankHasHereAreRefused) {
  for (int rank : {0, 1}) Apply(rank, 5);
  ASSERT_OK_AND_ASSIGN(const auto state, FrozenState::Create(*regions_, 5));
  v1::LivePiece piece;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const v1::LiveRange& range : {Range(2, 0, 0, 0, 1),
                                     Range(-1, 0, 0, 0, 1),
                                     Range(0, 2, 0, 0, 1),
                                     Range(0, -1, 0, 0, 1),
                                     Range(0, 0, -1, 0, 1),
                                     Range(0, 0, 3, 1, 1),
                                     Range(0, 1, 0, kLarge / 2 - 1, 2),
                                     Range(1, 1, 0, kLarge / 2 - 1, 2),
                                     Range(0, 1, 0, -1, 2),
                                     Range(0, 1, 0, 0, -1),
                                     Range(0, 1, 0, 1, kMax),
                                     Range(0, 1, 0, kMax, 1),
                                     Range(0, 2, 3, 0, 1),
                                     Range(0, -1, 3, 0, 1),
                                     Range(1, 1, 3, 0, 1),
                                     Range(0, 1, 3, 0, kTable + 1),
                                     Range(0, 1, 3, kTable, 1),
                                     Range(0, 1, 3, -1, 1),
                                     Range(0, 1, 3, 0, -1),
                                     Range(0, 1, 3, 1, kMax),
                                     Range(0, 0, 4, 0, 1)}) {
    EXPECT_THAT(state->Read(range, 0, &piece),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no elements")))
        << range.ShortDebugString();
  }
  EXPECT_THAT(state->Read(Range(0, 0, 0, 0, 5), 5, &piece),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("piece at 5 of 5")));
}

TEST_F(FrozenStateTest, RankThatIsBehindIsAwaitedAndOneThatIsAheadIsRefused) {
  Apply(0, 5);
  Apply(1, 4);
  ASSERT_OK_AND_ASSIGN(const auto state, FrozenState::Create(*regions_, 5));
  EXPECT_THAT(state->Await(absl::ZeroDuration(), Never),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("step 5")));
  EXPECT_THAT(state->Await(kPatience, [] { return true; }),
              StatusIs(absl::StatusCode::kCancelled, ::testing::_));
  std::thread executor([this] { Apply(1, 5); });
  EXPECT_OK(state->Await(kPatience, Never));
  executor.join();
  Apply(1, 6);
  EXPECT_THAT(state->Await(kPatience, Never),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("at step 6")));
}

TEST_F(FrozenStateTest, ReadingSaysThatTheJobTrainsOn) {
  for (int rank : {0, 1}) Apply(rank, 5);
  ASSERT_OK_AND_ASSIGN(const auto state, FrozenState::Create(*regions_, 5));
  v1::LivePiece piece;
  EXPECT_OK(state->Read(Range(0, 0, 0, 0, 1), 0, &piece));
  // The step that overwrites this one's version, of the other rank.
  EXPECT_TRUE(TryBeginWriting(&regions_->group()->ranks[1].hold, 7));
  EXPECT_THAT(state->Read(Range(0, 0, 0, 0, 1), 0, &piece),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("trains on after step 5")));
  regions_->group()->initialized.store(0);
  EXPECT_THAT(FrozenState::Create(*regions_, 5),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no values")));
}

}  // namespace
}  // namespace tessera
