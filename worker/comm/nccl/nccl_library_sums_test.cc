// What is left to NCCL to sum, and by which op it scales; and that the fake sees where ops are used
// as they must not be.
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/comm/nccl/nccl_communicator.h"
#include "worker/comm/nccl/nccl_test_group.h"
#include "worker/device/cuda/cuda_stream.h"

namespace tessera {
namespace {

NcclTestOptions Ranks(int size) {
  NcclTestOptions options;
  options.size = size;
  return options;
}

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) EXPECT_OK(status);
}

// What the library was asked for so far.
struct Asked {
  int sums, averages, ops;

  friend bool operator==(const Asked& a, const Asked& b) {
    return a.sums == b.sums && a.averages == b.averages && a.ops == b.ops;
  }
};

Asked AskedOf(const NcclTestRank& rank, NcclType type) {
  return {rank.nccl->num_sums(type), rank.nccl->num_averages(), rank.nccl->num_ops_made()};
}

TEST(NcclLibrarySumsTest, EachScaleHasItsOpAndEachRanksPartIsScaledBeforeItIsSummed) {
  ExpectAllOk(RunNcclRanks(Ranks(2), [](NcclTestRank& rank) -> absl::Status {
    rank.options.library_sums = true;
    ASSIGN_OR_RETURN(const auto comm, NcclCommunicator::Create(rank.options));
    const float mine = rank.rank == 0 ? 1.7f : 1e8f;
    const auto sum = [&](double scale, float* value) {
      *value = mine;
      return comm->AllReduce(value, 1, DType::kFp32, ReduceOp::kSum, scale);
    };
    float value = 0;
    RETURN_IF_ERROR(sum(1, &value));
    RANK_EXPECT(value == 1.7f + 1e8f, value);
    RANK_EXPECT(AskedOf(rank, NcclType::kFloat32) == (Asked{1, 0, 0}));
    RETURN_IF_ERROR(sum(AverageScale(2), &value));
    RANK_EXPECT(value == 0.5f * 1.7f + 0.5f * 1e8f, value);
    RANK_EXPECT(AskedOf(rank, NcclType::kFloat32) == (Asked{2, 1, 0}));
    RETURN_IF_ERROR(sum(0.3, &value));
    const float first = 0.3f * 1.7f, second = 0.3f * 1e8f;
    RANK_EXPECT(value == first + second, value);
    RANK_EXPECT(AskedOf(rank, NcclType::kFloat32) == (Asked{3, 1, 1}));
    const std::vector<double> send(4, rank.rank + 1.0);
    std::vector<double> recv(2);
    RETURN_IF_ERROR(comm->ReduceScatter(send.data(), recv.data(), 2, DType::kFp64, 0.1));
    RANK_EXPECT(recv == std::vector<double>(2, 0.1 * 1 + 0.1 * 2));
    RANK_EXPECT(AskedOf(rank, NcclType::kFloat64) == (Asked{1, 1, 2}));
    return absl::OkStatus();
  }));
}

TEST(NcclLibrarySumsTest, ScaleThatTheTypeWouldRoundIsLeftToTheKernels) {
  ExpectAllOk(RunNcclRanks(Ranks(3), [](NcclTestRank& rank) -> absl::Status {
    rank.options.library_sums = true;
    ASSIGN_OR_RETURN(const auto comm, NcclCommunicator::Create(rank.options));
    uint16_t value = 0x4040;  // 3 as bf16
    const auto average = [&] {
      return comm->AllReduce(&value, 1, DType::kBf16, ReduceOp::kSum, AverageScale(3));
    };
    RETURN_IF_ERROR(average());
    RANK_EXPECT(value == 0x4040, "an average of threes is ", value);
    RANK_EXPECT(AskedOf(rank, NcclType::kBfloat16) == (Asked{0, 0, 0}));
    RETURN_IF_ERROR(comm->AllReduce(&value, 1, DType::kBf16, ReduceOp::kSum, 0.5));
    RANK_EXPECT(value == 0x4090, "half of nine is ", value);
    RANK_EXPECT(AskedOf(rank, NcclType::kBfloat16) == (Asked{1, 0, 1}));
    RETURN_IF_ERROR(comm->AllReduce(&value, 1, DType::kBf16, ReduceOp::kMax, 1));
    RANK_EXPECT(AskedOf(rank, NcclType::kBfloat16) == (Asked{1, 0, 1}), "it may lose a NaN");
    return absl::OkStatus();
  }));
}

// Of 448, which is the largest there is, from each of two ranks.
absl::Status SumEightBits(NcclTestRank& rank, int expected_sums) {
  rank.options.library_sums = true;
  ASSIGN_OR_RETURN(const auto comm, NcclCommunicator::Create(rank.options));
  uint8_t code = 0x7E;
  RETURN_IF_ERROR(comm->AllReduce(&code, 1, Fp8Format::kE4M3, ReduceOp::kSum, 0.5));
  RANK_EXPECT(code == 0x7E, "an average of the largest is ", code);
  std::vector<uint8_t> send(6, 0x7E);
  std::vector<float> recv(3);
  RETURN_IF_ERROR(comm->ReduceScatter(send.data(), recv.data(), 3, Fp8Format::kE4M3, 1));
  RANK_EXPECT(recv == std::vector<float>(3, 896), "a sum in fp32 is ", recv[0]);
  const int sums = rank.nccl->num_sums(NcclType::kFloat8e4m3);
  RANK_EXPECT(sums == expected_sums, sums, " calls");
  return absl::OkStatus();
}

TEST(NcclLibrarySumsTest, EightBitsAreLeftToALibraryThatSumsThem) {
  NcclTestOptions options = Ranks(2);
  for (const auto& [version, expected_sums] : {std::pair(kNcclFp8 - 1, 0), {kNcclFp8, 1}}) {
    options.nccl = [version = version](int) {
      FakeNcclApi::Options nccl;
      nccl.version = version;
      return nccl;
    };
    ExpectAllOk(RunNcclRanks(options, [expected_sums = expected_sums](NcclTestRank& rank) {
      return SumEightBits(rank, expected_sums);
    }));
  }
}

TEST(NcclLibrarySumsTest, EightBitsAreSummedByKernelsOnAllRanksIfOneHasAnOlderGpu) {
  NcclTestOptions options = Ranks(2);
  options.cuda_of = [](int rank) {
    FakeCudaApi::Options cuda;
    cuda.compute_capability = rank == 1 ? kNcclFp8ComputeCapability - 1 : kNcclFp8ComputeCapability;
    return cuda;
  };
  ExpectAllOk(RunNcclRanks(options, [](NcclTestRank& rank) { return SumEightBits(rank, 0); }));
}

// One rank that calls the library itself.
class FakeNcclOpsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(device_, CudaDevice::Create(&cuda_, {}));
    ASSERT_OK_AND_ASSIGN(stream_, CudaStream::Create(device_->context(), "test", 0));
    comm_ = Join();
  }
  NcclComm* Join() {
    NcclUniqueId id;
    nccl_.GetUniqueId(&id);
    NcclComm* comm = nullptr;
    nccl_.CommInitRankConfig(&comm, 1, id, 0);
    return comm;
  }
  NcclOp MakeOp(const float* scalar, NcclScalar residence = NcclScalar::kHostImmediate) {
    NcclOp op = NcclOp::kSum;
    EXPECT_EQ(nccl_.RedOpCreatePreMulSum(&op, scalar, NcclType::kFloat32, residence, comm_),
              NcclResult::kSuccess);
    return op;
  }
  NcclResult Sum(NcclOp op, NcclComm* comm, float* value, NcclType type = NcclType::kFloat32) {
    nccl_.GroupStart();
    const NcclResult result = nccl_.AllReduce(value, value, 1, type, op, comm, stream_->handle());
    nccl_.GroupEnd();
    stream_->Synchronize();
    return result;
  }

  FakeCudaApi cuda_;
  FakeNcclWorld world_;
  FakeNcclApi nccl_{&world_, &cuda_};
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CudaStream> stream_;
  NcclComm* comm_ = nullptr;
  float half_ = 0.5f;
};

TEST_F(FakeNcclOpsTest, ScalarIsReadAtOnceOrOnceTheDeviceComesToIt) {
  float scalar = 3;
  const NcclOp at_once = MakeOp(&scalar), later = MakeOp(&scalar, NcclScalar::kDevice);
  float first = 10, second = 10;
  nccl_.GroupStart();
  nccl_.AllReduce(&first, &first, 1, NcclType::kFloat32, at_once, comm_, stream_->handle());
  nccl_.AllReduce(&second, &second, 1, NcclType::kFloat32, later, comm_, stream_->handle());
  // As soon as it was given to its last call.
  EXPECT_EQ(nccl_.RedOpDestroy(at_once, comm_), NcclResult::kSuccess);
  EXPECT_EQ(nccl_.RedOpDestroy(later, comm_), NcclResult::kSuccess);
  scalar = 4;
  nccl_.GroupEnd();
  stream_->Synchronize();
  EXPECT_EQ(first, 30);
  EXPECT_EQ(second, 40);
  nccl_.CommAbort(comm_);
  EXPECT_EQ(nccl_.misuses(), 0);
}

TEST_F(FakeNcclOpsTest, OpThatIsLeftToAnAbortIsSeen) {
  MakeOp(&half_);
  nccl_.CommAbort(comm_);
  EXPECT_EQ(nccl_.misuses(), 1);
}

TEST_F(FakeNcclOpsTest, OpIsForItsCommunicatorAndTypeUntilItIsDestroyed) {
  NcclComm* const other = Join();
  const NcclOp op = MakeOp(&half_);
  float value = 3;
  EXPECT_EQ(Sum(op, comm_, &value), NcclResult::kSuccess);
  EXPECT_EQ(value, 1.5f);
  EXPECT_EQ(nccl_.misuses(), 0);
  EXPECT_EQ(Sum(op, other, &value), NcclResult::kInvalidArgument);
  EXPECT_EQ(Sum(op, comm_, &value, NcclType::kBfloat16), NcclResult::kInvalidArgument);
  EXPECT_EQ(nccl_.RedOpDestroy(op, other), NcclResult::kInvalidArgument);
  EXPECT_EQ(nccl_.RedOpDestroy(NcclOp::kAverage, comm_), NcclResult::kInvalidArgument);
  EXPECT_EQ(nccl_.misuses(), 4);
  EXPECT_EQ(nccl_.RedOpDestroy(op, comm_), NcclResult::kSuccess);
  EXPECT_EQ(Sum(op, comm_, &value), NcclResult::kInvalidArgument);
  EXPECT_EQ(nccl_.RedOpDestroy(op, comm_), NcclResult::kInvalidArgument);
  EXPECT_EQ(nccl_.misuses(), 6);
  EXPECT_EQ(value, 1.5f);
}

}  // namespace
}  // namespace tessera
