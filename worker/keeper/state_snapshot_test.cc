// Copies of state, from real regions; the test is the executors.
#include "worker/keeper/state_snapshot.h"

#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "absl/functional/function_ref.h"
#include "base/fault_point.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "shm/buffer_memory.h"
#include "worker/engine/state_hold.h"
#include "worker/executor/executor_memory.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);
bool Never() { return false; }
constexpr int64_t kTableElements = StateSnapshot::kMaxPieceBytes / 2 + 7;

// All of it, before anything is read.
absl::StatusOr<StateSnapshot::Progress> CopyAt(StateSnapshot* snapshot, int64_t step,
                                               absl::Duration patience,
                                               absl::FunctionRef<bool()> cancelled) {
  auto progress = snapshot->Begin(step, patience, cancelled);
  if (!progress.ok()) return progress;
  const absl::Status status = snapshot->Copy(cancelled);
  if (!status.ok()) return status;
  return progress;
}

struct Piece {
  int64_t offset_elements = 0;
  std::string bytes;
};

absl::StatusOr<std::optional<Piece>> NextOf(StateSnapshot* snapshot) {
  Piece read;
  const auto piece = snapshot->Next([&](int64_t size_bytes) {
    read.bytes.resize(size_bytes);
    return read.bytes.data();
  });
  if (!piece.ok()) return piece.status();
  if (!piece->has_value()) return std::nullopt;
  read.offset_elements = (*piece)->offset_elements;
  EXPECT_EQ((*piece)->size_bytes, static_cast<int64_t>(read.bytes.size()));
  return read;
}

// What element `i` of an array's shards is at a step.
double ValueAt(int rank, StateArray array, int64_t step, int64_t i) {
  return rank * 1000.0 + static_cast<int>(array) * 100.0 + static_cast<double>(step) +
         static_cast<double>(i) * 0.001;
}

class StateSnapshotTest : public testing::Test {
 protected:
  void TearDown() override { DisarmAllFaultPoints(); }

  void Make(int world_size, DType dtype = DType::kFp32) {
    v1::Job job;
    ModelSpec model;
    model.units.push_back({"root", {{"a", {70}, dtype}, {"frozen", {3}, dtype, false}}});
    model.units.push_back({"u", {{"b", {50, 4}, dtype}, {"empty", {0}, dtype}}});
    model.buffers = {{"count", StoredDType::kI64, {}},
                     {"none", StoredDType::kBool, {0}},
                     {"table", StoredDType::kI16, {kTableElements}}};
    JobConfig config;
    config.world_size = world_size;
    job.set_job_id("toy");
    *job.mutable_model() = EncodeModel(model);
    *job.mutable_config() = EncodeJobConfig(config);
    for (int rank = 0; rank < world_size; ++rank) {
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
    request_.spool_folder = testing::TempDir();
    regions_->group()->initialized.store(1);
    for (int rank = 0; rank < world_size; ++rank) Apply(rank, 4);
  }
  // Writes a rank's version of `step` and publishes it.
  void Apply(int rank, int64_t step) {
    const auto mapping = Mapping::CreateWhole(regions_->state_fd(Rank(rank)), Access::kReadWrite);
    for (int a = 0; a < 3; ++a) {
      const auto array = static_cast<StateArray>(a);
      std::byte* base = mapping->data() + memory_.StateOffsetBytes(array, step % 2);
      const bool is_double = memory_.units()[0].full_dtype == DType::kFp64;
      for (int64_t i = 0; i < memory_.shard_numel(); ++i) {
        if (is_double) {
          reinterpret_cast<double*>(base)[i] = ValueAt(rank, array, step, i);
        } else {
          reinterpret_cast<float*>(base)[i] = static_cast<float>(ValueAt(rank, array, step, i));
        }
      }
    }
    for (int buffer = 0; rank == 0 && buffer < 3; ++buffer) {
      const std::string bytes = BufferAt(buffer, step);
      memcpy(SlotOf(step).values(buffer), bytes.data(), bytes.size());
    }
    const std::vector<int64_t> counts = {step, 0, step - 1, 0};
    regions_->update_counts().Set(step, counts);
    regions_->group()->decisions[step % 2].trained_step.store(step + 100);
    PublishApplied(regions_->group(), rank, step);
  }
  // What is read of a buffer at a step.
  std::string BufferAt(int buffer, int64_t step) const {
    std::string bytes(memory_.buffers().size_bytes(buffer), 0);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i + 31 * step + buffer);
    return bytes;
  }
  BufferBank SlotOf(int64_t step) {
    group_ = *Mapping::CreateWhole(regions_->group_fd(), Access::kReadWrite);
    return {&memory_.buffers(), group_.data() + BufferSlotsOffsetBytes(memory_, 0) +
                                    step % 2 * memory_.buffers().bank_bytes()};
  }
  StateHold& HoldOf(int rank) { return regions_->group()->ranks[rank].hold; }

  std::unique_ptr<StateSnapshot> Snapshot() {
    auto snapshot = StateSnapshot::Create(*regions_, request_);
    EXPECT_OK(snapshot);
    return *std::move(snapshot);
  }
  // All pieces must follow each other as the slices do, with these values.
  template <typename Real>
  void ExpectPieces(StateSnapshot* snapshot, int64_t step, int world_size) {
    const auto tensors = *LiveTensors(regions_->layout(), regions_->config().optimizer,
                                      request_.parameters, request_.moments);
    ASSERT_OK(
        ForEachLiveSlice(regions_->layout(), tensors, 0, world_size, [&](const LiveSlice& slice) {
          const auto piece = *NextOf(snapshot);
          EXPECT_TRUE(piece.has_value());
          EXPECT_EQ(piece->offset_elements, slice.begin_elements);
          std::vector<Real> values(slice.numel);
          EXPECT_EQ(piece->bytes.size(), values.size() * sizeof(Real));
          memcpy(values.data(), piece->bytes.data(), piece->bytes.size());
          const LiveTensor& tensor = tensors[slice.tensor];
          const int64_t first =
              memory_.units()[tensor.unit].shard_offset_elements + slice.shard_begin_elements;
          for (int64_t i = 0; i < slice.numel; ++i) {
            EXPECT_EQ(values[i],
                      static_cast<Real>(ValueAt(slice.rank, static_cast<StateArray>(tensor.array),
                                                step, first + i)));
          }
          return absl::OkStatus();
        }));
    EXPECT_FALSE(NextOf(snapshot)->has_value());
  }

  std::unique_ptr<JobRegions> regions_;
  JobMemory memory_;
  Mapping group_;
  StateSnapshot::Request request_;
};

TEST_F(StateSnapshotTest, BuffersComeBehindTheRestAsTheyAreOfTheSameStepFromMemoryOrTheFile) {
  constexpr size_t kBehindParameter = 3 * sizeof(uint16_t);  // "frozen", rounded.
  for (const bool from_file : {false, true}) {
    Make(3);
    request_.parameters = {1};
    request_.moments = false;
    request_.buffers = {0, 1, 2};
    request_.dtype = DType::kBf16;
    const auto snapshot = Snapshot();
    ASSERT_EQ(snapshot->Hold().value(), 4);
    ASSERT_OK(snapshot->Begin(4, kPatience, Never));
    if (from_file) {
      ASSERT_OK(snapshot->Copy(Never));
    }
    for (int rank = 0; rank < 3; ++rank) Apply(rank, 5);
    if (from_file) Apply(0, 6);
    std::string all, table;
    while (const auto piece = *NextOf(snapshot.get())) {
      if (all.size() >= kBehindParameter + sizeof(int64_t)) {
        EXPECT_EQ(piece->offset_elements * 2, static_cast<int64_t>(table.size()));
        table += piece->bytes;
      }
      all += piece->bytes;
    }
    EXPECT_EQ(all.substr(kBehindParameter, sizeof(int64_t)), BufferAt(0, 4));
    EXPECT_TRUE(table == BufferAt(2, 4));
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(HoldOf(rank).held.load(), 0);
  }
}

TEST_F(StateSnapshotTest, BuffersAreNotGivenOutOnceTheirVersionIsHeldNoLonger) {
  Make(2);
  request_.parameters.clear();
  request_.buffers = {2};
  const auto snapshot = Snapshot();
  ASSERT_EQ(snapshot->Hold().value(), 4);
  ASSERT_OK(snapshot->Begin(4, kPatience, Never));
  ASSERT_EQ(BeginWriting(&HoldOf(0), 6, AbortFlag(), absl::InfinitePast()).value(),
            WriteBegin::kBrokeHold);
  EXPECT_THAT(NextOf(snapshot.get()).status(), StatusIs(absl::StatusCode::kAborted, HasSubstr("")));
}

TEST_F(StateSnapshotTest, BuffersThatTheJobDoesNotHaveAreRefused) {
  Make(1);
  for (const std::vector<int>& buffers : {std::vector<int>{3}, {-1}, {1, 1}}) {
    request_.buffers = buffers;
    EXPECT_THAT(StateSnapshot::Create(*regions_, request_).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of 3")));
  }
}

TEST_F(StateSnapshotTest, CopyIsTheStateOfTheStepWhateverComesAfterIt) {
  for (const int world_size : {1, 3}) {
    Make(world_size);
    const auto snapshot = Snapshot();
    ASSERT_EQ(snapshot->Hold().value(), 4);
    for (int rank = 0; rank < world_size; ++rank) Apply(rank, 5);
    const auto copied = CopyAt(snapshot.get(), 4, kPatience, Never);
    ASSERT_OK(copied);
    EXPECT_EQ(copied->trained_step, 104);
    EXPECT_THAT(copied->update_counts, testing::ElementsAre(4, 0, 3, 0));
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(HoldOf(rank).held.load(), 0);
      Apply(rank, 6);
    }
    ExpectPieces<float>(snapshot.get(), 4, world_size);
  }
}

TEST_F(StateSnapshotTest, RankThatIsBehindIsWaitedForAndCopiedAtTheSameStep) {
  Make(2);
  Apply(0, 5);
  const auto snapshot = Snapshot();
  ASSERT_EQ(snapshot->Hold().value(), 5);
  std::thread executor([&] {
    while (HoldOf(1).held.load() != 6) std::this_thread::yield();
    Apply(1, 5);
  });
  ASSERT_OK(CopyAt(snapshot.get(), 5, kPatience, Never));
  executor.join();
  ExpectPieces<float>(snapshot.get(), 5, 2);
}

TEST_F(StateSnapshotTest, RankThatNeverComesIsNamedAndNothingIsHeldAfterwards) {
  Make(2);
  Apply(0, 5);
  auto snapshot = Snapshot();
  ASSERT_EQ(snapshot->Hold().value(), 5);
  EXPECT_THAT(CopyAt(snapshot.get(), 5, absl::Milliseconds(1), Never).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 has not completed")));
  snapshot.reset();
  EXPECT_EQ(HoldOf(0).held.load(), 0);
  EXPECT_EQ(HoldOf(1).held.load(), 0);
}

TEST_F(StateSnapshotTest, CopyThatTrainingDidNotWaitForIsVoid) {
  Make(2);
  const auto snapshot = Snapshot();
  ASSERT_EQ(snapshot->Hold().value(), 4);
  ASSERT_EQ(BeginWriting(&HoldOf(1), 6, AbortFlag(), absl::InfinitePast()).value(),
            WriteBegin::kBrokeHold);
  EXPECT_THAT(CopyAt(snapshot.get(), 5, kPatience, Never).status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1")));
}

TEST_F(StateSnapshotTest, SecondOneOfAJobIsRefusedWhileTheFirstHolds) {
  Make(2);
  const auto first = Snapshot(), second = Snapshot();
  ASSERT_EQ(first->Hold().value(), 4);
  EXPECT_THAT(second->Hold().status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("reader")));
  ASSERT_OK(CopyAt(first.get(), 4, kPatience, Never));
  EXPECT_EQ(second->Hold().value(), 4);
}

TEST_F(StateSnapshotTest, DiskThatIsFullIsAnErrorByNameAndNothingIsHeldAfterwards) {
  Make(2);
  auto snapshot = Snapshot();
  ASSERT_EQ(snapshot->Hold().value(), 4);
  ArmFaultPoint("snapshot.copy",
                {FaultAction::kFail, 2, absl::ResourceExhaustedError("spool folder: full")});
  EXPECT_THAT(CopyAt(snapshot.get(), 4, kPatience, Never).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("spool folder")));
  snapshot.reset();
  EXPECT_EQ(HoldOf(0).held.load(), 0);
  request_.spool_folder = "/nonexistent";
  snapshot = Snapshot();
  ASSERT_EQ(snapshot->Hold().value(), 4);
  EXPECT_THAT(CopyAt(snapshot.get(), 4, kPatience, Never).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'/nonexistent'")));
}

TEST_F(StateSnapshotTest, ReaderThatIsGoneEndsIt) {
  Make(1);
  auto snapshot = Snapshot();
  ASSERT_EQ(snapshot->Hold().value(), 4);
  EXPECT_THAT(CopyAt(snapshot.get(), 4, kPatience, [] { return true; }).status(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
}

TEST_F(StateSnapshotTest, WhatWasGivenOutNeedsNoCopyAndTheRestIsOfTheSameStepWhateverComesAfterIt) {
  Make(3);
  auto snapshot = Snapshot();
  std::vector<Piece> expected;
  ASSERT_EQ(snapshot->Hold().value(), 4);
  ASSERT_OK(snapshot->Begin(4, kPatience, Never));
  while (const auto piece = *NextOf(snapshot.get())) expected.push_back(*piece);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(HoldOf(rank).held.load(), 0);
  EXPECT_GT(expected.size(), 6u);
  for (size_t given_out = 0; given_out <= expected.size(); ++given_out) {
    for (int rank = 0; rank < 3; ++rank) Apply(rank, 4);
    snapshot = Snapshot();
    ASSERT_EQ(snapshot->Hold().value(), 4);
    ASSERT_OK(snapshot->Begin(4, kPatience, Never));
    for (size_t i = 0; i < expected.size(); ++i) {
      if (i == given_out) {
        EXPECT_EQ(HoldOf(0).held.load(), 5);
        ASSERT_OK(snapshot->Copy(Never));
        EXPECT_EQ(HoldOf(0).held.load(), 0);
        for (int rank = 0; rank < 3; ++rank) Apply(rank, 6);
      }
      const auto piece = *NextOf(snapshot.get());
      ASSERT_TRUE(piece.has_value());
      EXPECT_EQ(piece->offset_elements, expected[i].offset_elements);
      EXPECT_EQ(piece->bytes, expected[i].bytes) << given_out << " given out, piece " << i;
    }
    EXPECT_FALSE(NextOf(snapshot.get())->has_value());
  }
}

TEST_F(StateSnapshotTest, ReaderAndCopierAtOnceGiveTheStateOfTheStep) {
  Make(3);
  for (int round = 0; round < 50; ++round) {
    for (int rank = 0; rank < 3; ++rank) Apply(rank, 4);
    const auto snapshot = Snapshot();
    ASSERT_EQ(snapshot->Hold().value(), 4);
    ASSERT_OK(snapshot->Begin(4, kPatience, Never));
    std::thread copier([&] {
      EXPECT_OK(snapshot->Copy(Never));
      for (int rank = 0; rank < 3; ++rank) Apply(rank, 6);
    });
    ExpectPieces<float>(snapshot.get(), 4, 3);
    copier.join();
  }
}

TEST_F(StateSnapshotTest, ReaderCopiesFirstWhereAnExecutorWaits) {
  Make(2);
  const auto snapshot = Snapshot();
  ASSERT_EQ(snapshot->Hold().value(), 4);
  ASSERT_OK(snapshot->Begin(4, kPatience, Never));
  EXPECT_FALSE(snapshot->IsTrainingOn());
  ASSERT_TRUE(TryBeginWriting(&HoldOf(0), 5));
  EXPECT_TRUE(snapshot->IsTrainingOn());
  ASSERT_FALSE(TryBeginWriting(&HoldOf(1), 6));
  ASSERT_TRUE(NextOf(snapshot.get())->has_value());
  EXPECT_TRUE(TryBeginWriting(&HoldOf(1), 6));
  EXPECT_TRUE(TryBeginWriting(&HoldOf(0), 6));
}

TEST_F(StateSnapshotTest, NothingIsGivenOutOfAStateThatIsHeldNoLonger) {
  Make(2);
  const auto snapshot = Snapshot();
  ASSERT_EQ(snapshot->Hold().value(), 4);
  ASSERT_OK(snapshot->Begin(4, kPatience, Never));
  ASSERT_TRUE(NextOf(snapshot.get())->has_value());
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(BeginWriting(&HoldOf(rank), 6, AbortFlag(), absl::InfinitePast()).value(),
              WriteBegin::kBrokeHold);
  }
  EXPECT_THAT(NextOf(snapshot.get()).status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("training continued")));
}

TEST_F(StateSnapshotTest, Fp64IsReadInFullOrInFp32AndFp32IsNoFp64) {
  Make(3, DType::kFp64);
  auto snapshot = Snapshot();
  ASSERT_EQ(snapshot->Hold().value(), 4);
  ASSERT_OK(CopyAt(snapshot.get(), 4, kPatience, Never));
  ExpectPieces<double>(snapshot.get(), 4, 3);
  request_.dtype = DType::kFp32;
  snapshot = Snapshot();
  ASSERT_EQ(snapshot->Hold().value(), 4);
  ASSERT_OK(CopyAt(snapshot.get(), 4, kPatience, Never));
  ExpectPieces<float>(snapshot.get(), 4, 3);
  Make(1);
  request_.dtype = DType::kFp64;
  EXPECT_THAT(StateSnapshot::Create(*regions_, request_).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'a' is kept in fp32")));
}

TEST_F(StateSnapshotTest, JobWithoutValuesIsRefused) {
  Make(1);
  regions_->group()->initialized.store(0);
  EXPECT_THAT(StateSnapshot::Create(*regions_, request_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no values yet")));
}

TEST(SpoolFileTest, HasNoNameAndGivesBackWhatWasAppended) {
  const std::string folder = testing::TempDir() + "/spool-test";
  ASSERT_EQ(system(("rm -rf " + folder + " && mkdir " + folder).c_str()), 0);
  auto spool = SpoolFile::Create(folder, 8);
  ASSERT_OK(spool);
  ASSERT_OK(spool->Append("abcd", 4));
  ASSERT_OK(spool->Append("efgh", 4));
  EXPECT_EQ(rmdir(folder.c_str()), 0);  // It is empty.
  char bytes[4];
  ASSERT_OK(spool->Read(2, bytes, 4));
  EXPECT_EQ(std::string(bytes, 4), "cdef");
  EXPECT_THAT(spool->Read(6, bytes, 4), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(folder)));
}

}  // namespace
}  // namespace tessera
