// Communicators that are aborted in the middle of an operation, 50 in one process: each rank is
// told why, the next one works, and the device has as much free memory as before. Ranks are threads
// over the fakes everywhere, and processes over the machine's own NCCL where it and a device are
// there.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/comm/nccl/nccl_processes.h"
#include "worker/comm/nccl/nccl_test_group.h"
#include "worker/comm/shm/shm_test_group.h"

namespace tessera {
namespace {

using absl::StatusCode;

constexpr int kRanks = 2;
constexpr int kAborts = 50;
constexpr int kWarmUp = 5;  // In which the library takes what it keeps for all communicators.
constexpr int kLooks = 5;   // At what is free, before and after: the most of them counts.

// Those of the device, of which one ends the epoch: between two pieces of an operation, while the
// other rank's device waits for the next piece.
class AbortingKernels : public SliceKernels {
 public:
  AbortingKernels(SliceKernels* kernels, Communicator* control)
      : kernels_(kernels), control_(control) {}
  absl::Status Reduce(CudaStreamHandle*, absl::Span<const void* const>, ElementType, int64_t,
                      double, bool, host::SumOutput, host::GradientStats*) override {
    return absl::UnimplementedError("not called");
  }
  absl::Status Combine(CudaStreamHandle* stream, absl::Span<const void* const> inputs,
                       ElementType type, ReduceOp op, double scale, int64_t count,
                       void* output) override {
    if (control_ != nullptr && ++num_calls_ == 3) {
      control_->Abort(absl::AbortedError("as the test has it"));
    }
    return kernels_->Combine(stream, inputs, type, op, scale, count, output);
  }

 private:
  SliceKernels* const kernels_;
  Communicator* const control_;  // Null: none of these ends it.
  int num_calls_ = 0;
};

// A round's ranks speak by memory of their own, as epochs do.
class Rounds {
 public:
  Rounds() {
    for (int round = 0; round <= kAborts; ++round)
      mappings_.push_back(std::make_unique<SharedMapping>(ShmBytes(Group())));
  }
  // Number kAborts is never aborted.
  absl::StatusOr<std::unique_ptr<ShmCommunicator>> Join(int round, int rank) const {
    ShmCommunicator::Options options = ShmOptions(Group(), *mappings_[round]);
    options.rank = rank;
    options.base = mappings_[round]->MapAgain();
    return ShmCommunicator::Create(options);
  }

 private:
  static GroupOptions Group() {
    GroupOptions group;
    group.size = kRanks;
    return group;
  }
  std::vector<std::unique_ptr<SharedMapping>> mappings_;
};

absl::StatusOr<int64_t> FreeBytes(CudaDevice* device) {
  RETURN_IF_ERROR(device->context()->Use());
  ASSIGN_OR_RETURN(const CudaMemInfo memory, device->context()->api()->MemGetInfo());
  return memory.free_bytes;
}

// This machine's report of processes' GPU memory, if available, or why not: for readers of a
// failure about missing memory, which other processes may have.
std::string WhoHasWhat() {
  std::string said;
  FILE* const pipe = popen(
      "nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv,noheader 2>&1",
      "r");
  if (pipe == nullptr) return "nobody could be asked";
  char line[256];
  while (fgets(line, sizeof(line), pipe) != nullptr) said += line;
  pclose(pipe);
  return said;
}

absl::Status AllReduceOnes(NcclCommunicator* comm, CudaDevice* device, float* buffer,
                           int64_t count) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("test"));
  std::vector<float> values(count, 1.0f);
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  device->Copy(stream.get(), buffer, values.data(), bytes);
  stream->Synchronize();
  RETURN_IF_ERROR(comm->AllReduce(buffer, count, DType::kFp32, ReduceOp::kSum, 1));
  device->Copy(stream.get(), values.data(), buffer, bytes);
  stream->Synchronize();
  RETURN_IF_ERROR(device->status());
  for (const float value : values) RANK_EXPECT(value == kRanks, "a sum is ", value);
  return absl::OkStatus();
}

// One communicator: it works, and then it is aborted in an operation.
absl::Status AbortOne(const Rounds& rounds, int round, int rank,
                      NcclCommunicator::Options options) {
  constexpr int64_t kFew = 1000, kManyPieces = 100'000;
  ASSIGN_OR_RETURN(const std::unique_ptr<ShmCommunicator> control, rounds.Join(round, rank));
  options.control = control.get();
  options.control_aborted = [control = control.get()] { return control->aborted(); };
  options.timeout = absl::Seconds(60);
  options.staging_bytes = 16 << 10;
  AbortingKernels aborting(options.kernels, rank == round % kRanks ? control.get() : nullptr);
  options.kernels = &aborting;
  ASSIGN_OR_RETURN(const Buffer buffer,
                   options.device->Allocate(kManyPieces * static_cast<int64_t>(sizeof(float))));
  ASSIGN_OR_RETURN(const std::unique_ptr<NcclCommunicator> comm, NcclCommunicator::Create(options));
  RETURN_IF_ERROR(AllReduceOnes(comm.get(), options.device, buffer.data_as<float>(), kFew));
  const absl::Status ended =
      AllReduceOnes(comm.get(), options.device, buffer.data_as<float>(), kManyPieces);
  RANK_EXPECT(ended.code() == StatusCode::kAborted, "the operation ended with ", ended.ToString());
  return options.device->status();
}

// The driver tells what is free of the whole device. What others take for a while, and give back
// before the last of several looks, is not mistaken for ours.
//
// `slack_bytes`: by how much less may be free in the end, for what others do on the device.
// `before_look`, where there is one, is called with the round before each look.
absl::Status AbortOften(const Rounds& rounds, int rank, const NcclCommunicator::Options& options,
                        int64_t slack_bytes,
                        const std::function<absl::Status(int round)>& before_look = nullptr) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ShmCommunicator> all, rounds.Join(kAborts, rank));
  int64_t free_before = 0, free_after = 0;
  for (int round = 0; round < kAborts; ++round) {
    RETURN_IF_ERROR(
        Annotate(AbortOne(rounds, round, rank, options), absl::StrCat("communicator ", round)));
    RETURN_IF_ERROR(all->Barrier());  // Then no rank has a communicator.
    if (before_look) RETURN_IF_ERROR(before_look(round));
    ASSIGN_OR_RETURN(const int64_t free_bytes, FreeBytes(options.device));
    RETURN_IF_ERROR(all->Barrier());
    if (round >= kWarmUp && round < kWarmUp + kLooks)
      free_before = std::max(free_before, free_bytes);
    if (round >= kAborts - kLooks) free_after = std::max(free_after, free_bytes);
  }
  TESSERA_LOG(INFO, "rank {}: {} bytes free after {} aborts, {} after {}", rank, free_before,
              kWarmUp + kLooks, free_after, kAborts);
  if (free_after >= free_before - slack_bytes) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("free after ", kAborts, " aborts: ", free_after,
                                          " bytes, before: ", free_before,
                                          "; who has the GPU's memory: ", WhoHasWhat()));
}

TEST(FakeNcclAbortsTest, FiftyInOneProcessLeaveTheDevicesMemoryAsItWas) {
  const Rounds rounds;
  NcclTestOptions options;
  options.size = kRanks;
  const auto statuses = RunNcclRanks(options, [&](NcclTestRank& rank) -> absl::Status {
    const std::string held = rank.cuda->Held();
    RETURN_IF_ERROR(AbortOften(rounds, rank.rank, rank.options, /*slack_bytes=*/0));
    RANK_EXPECT(rank.cuda->Held() == held, "held: ", rank.cuda->Held());
    RANK_EXPECT(rank.nccl->num_aborts() == kAborts, rank.nccl->num_aborts(), " aborts");
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_OK(status);
}

// That the looks see what they are for, and not what they are not for.
TEST(FakeNcclAbortsTest, WhatEachAbortLeavesIsSeenAndWhatAnotherHasForAWhileIsNot) {
  for (const bool leaks : {true, false}) {
    SCOPED_TRACE(leaks);
    const Rounds rounds;
    NcclTestOptions options;
    options.size = kRanks;
    const auto statuses = RunNcclRanks(options, [&](NcclTestRank& rank) -> absl::Status {
      std::vector<Buffer> held;
      const auto before_look = [&](int round) -> absl::Status {
        if (!leaks) held.clear();
        if (!leaks && round % 3 == 0) return absl::OkStatus();  // The others have theirs.
        ASSIGN_OR_RETURN(Buffer buffer, rank.options.device->Allocate(1 << 20));
        held.push_back(std::move(buffer));
        return absl::OkStatus();
      };
      return AbortOften(rounds, rank.rank, rank.options, /*slack_bytes=*/0, before_look);
    });
    for (const absl::Status& status : statuses) {
      if (leaks) {
        EXPECT_THAT(status, StatusIs(StatusCode::kInternal, testing::HasSubstr("free after 50")));
      } else {
        EXPECT_OK(status);
      }
    }
  }
}

TEST(DeviceNcclAbortsTest, FiftyInOneProcessLeaveTheDevicesMemoryAsItWas) {
  const absl::Status found = FindRealNccl();
  if (!found.ok()) GTEST_SKIP() << found;
  const Rounds rounds;
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&rounds, rank]() -> absl::Status {
      ASSIGN_OR_RETURN(const NcclMachine machine, MakeRealNcclMachine(rank, kRanks));
      ASSIGN_OR_RETURN(const std::unique_ptr<NcclThread> thread, NcclThread::Create());
      NcclCommunicator::Options options;
      options.nccl = machine.nccl;
      options.thread = thread.get();
      options.device = machine.device;
      options.kernels = machine.kernels;
      // A communicator takes tens of mebibytes.
      return AbortOften(rounds, rank, options, /*slack_bytes=*/int64_t{16} << 20);
    });
  }
  for (RankProcess& rank : ranks) EXPECT_OK(rank.Join());
}

}  // namespace
}  // namespace tessera
