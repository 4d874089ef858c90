#include "worker/engine/state_image.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/job_layout.h"
#include "worker/device/host/host_rank_kernels.h"

namespace tessera {
namespace {

// Rank 1's state of a job of two ranks, each byte of it another one than its neighbours.
class StateImageTest : public testing::TestWithParam<OptimizerKind> {
 protected:
  void SetUp() override {
    config_.world_size = 2;
    config_.optimizer = GetParam();
    const ModelSpec model = {{{"root", {{"a", {50, 13}, DType::kFp32}, {"b", {40}, DType::kFp32}}},
                              {"wide", {{"c", {301}, DType::kFp64}}}}};
    ASSERT_OK_AND_ASSIGN(layout_, LayOut(model, config_));
    ASSERT_OK_AND_ASSIGN(plan_, JobMemory::Create(layout_, config_));
    segments_ = SegmentsOf(layout_, config_, plan_, Rank(1));
    ASSERT_GE(segments_.size(), 2u);
    state_.resize(plan_.state_region_bytes());
    for (size_t i = 0; i < state_.size(); ++i) state_[i] = static_cast<std::byte>(i * 7 + i / 251);
  }
  std::vector<StateArray> Arrays() const {
    std::vector<StateArray> arrays = MomentsOf(config_.optimizer);
    arrays.insert(arrays.begin(), StateArray::kParameter);
    return arrays;
  }
  // Of the state, at the segment's elements of a version.
  std::string StateBytes(StateArray array, int version, const ShardSegment& segment) const {
    const auto* at = reinterpret_cast<const char*>(state_.data()) +
                     plan_.StateOffsetBytes(array, version) +
                     segment.state_begin_elements * SizeBytes(segment.dtype);
    return std::string(at, segment.numel * SizeBytes(segment.dtype));
  }
  static std::string Bytes(Values values) {
    return std::string(static_cast<const char*>(values.data()), values.size_bytes());
  }

  JobConfig config_;
  ModelLayout layout_;
  JobMemory plan_;
  std::vector<ShardSegment> segments_;
  std::vector<std::byte> state_;
  HostRankKernels kernels_;
};

TEST_P(StateImageTest, IsTheVersionThatWasPulledAndBecomesTheOneThatItIsPushedTo) {
  StateImage image(&plan_, config_.optimizer, state_.data());
  const std::vector<std::byte> before = state_;
  for (const int version : {1, 0}) {
    ASSERT_OK(image.Reserve(&kernels_));
    ASSERT_OK(image.Pull(version, &kernels_));
    for (const StateArray array : Arrays()) {
      for (const ShardSegment& segment : segments_) {
        EXPECT_EQ(image.At(array, segment).dtype(), segment.dtype);
        EXPECT_EQ(Bytes(image.At(array, segment)), StateBytes(array, version, segment));
      }
    }
  }
  EXPECT_EQ(state_, before);
  memset(image.At(StateArray::kParameter, segments_[0]).data(), 0x5A, 4);
  ASSERT_OK(image.Push(1, &kernels_));
  for (const StateArray array : Arrays()) {
    for (const ShardSegment& segment : segments_)
      EXPECT_EQ(StateBytes(array, 1, segment), Bytes(image.At(array, segment)));
  }
  // All else stays: the other version, and the reduced gradient.
  std::vector<std::byte> after = state_;
  const int64_t array_bytes = plan_.StateOffsetBytes(StateArray::kParameter, 1);
  for (const StateArray array : Arrays()) {
    const int64_t at = plan_.StateOffsetBytes(array, 1);
    std::copy_n(before.begin() + at, array_bytes, after.begin() + at);
  }
  EXPECT_EQ(after, before);
}

TEST_P(StateImageTest, IsAllZeroOnceCleared) {
  StateImage image(&plan_, config_.optimizer, state_.data());
  ASSERT_OK(image.Reserve(&kernels_));
  ASSERT_OK(image.Pull(0, &kernels_));
  image.Clear();
  for (const StateArray array : Arrays()) {
    for (const ShardSegment& segment : segments_) {
      const std::string bytes = Bytes(image.At(array, segment));
      EXPECT_EQ(bytes, std::string(bytes.size(), '\0'));
    }
  }
}

class NoMemoryKernels : public HostRankKernels {
 public:
  absl::StatusOr<Buffer> AllocateOnHost(int64_t) override {
    return absl::ResourceExhaustedError("there is none");
  }
};

TEST_P(StateImageTest, WithoutMemoryIsAnErrorAndIsTriedAgain) {
  StateImage image(&plan_, config_.optimizer, state_.data());
  NoMemoryKernels none;
  const std::string wanted = absl::StrCat(image.size_bytes(), " bytes of the state: there is none");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(image.Reserve(&none),
                StatusIs(absl::StatusCode::kResourceExhausted, testing::HasSubstr(wanted)));
  }
  ASSERT_OK(image.Reserve(&kernels_));
  ASSERT_OK(image.Pull(0, &kernels_));
  EXPECT_EQ(Bytes(image.At(StateArray::kParameter, segments_[0])),
            StateBytes(StateArray::kParameter, 0, segments_[0]));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, StateImageTest,
                         testing::Values(OptimizerKind::kAdamW, OptimizerKind::kSgd));

}  // namespace
}  // namespace tessera
