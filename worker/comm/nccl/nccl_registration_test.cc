// Memory that is registered with NCCL: on all ranks or on none, and never an error.
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/comm/nccl/nccl_communicator.h"
#include "worker/comm/nccl/nccl_test_group.h"
#include "worker/device/cuda/device_region.h"

namespace tessera {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kSlice = 1000;  // ELEMENTS: a staging slot is a little larger than a slice.
constexpr int64_t kRegionBytes = kRanks * kSlice * sizeof(float);

// A rank's memory of the device, and the communicator that has it registered.
struct Registered {
  Buffer parameters, gradients, sums;
  std::unique_ptr<NcclCommunicator> comm;
};

absl::StatusOr<Registered> Register(NcclTestRank& rank) {
  Registered made;
  PrimaryContext* context = rank.options.device->context();
  const SharingDevice device = {context->api(), context->device(), context};
  for (Buffer* buffer : {&made.parameters, &made.gradients, &made.sums}) {
    ASSIGN_OR_RETURN(*buffer, AllocateRegion(device, kRegionBytes));
  }
  rank.options.registers = true;
  rank.options.max_slice_bytes = kSlice * sizeof(float);
  for (Buffer* buffer : {&made.parameters, &made.gradients})
    rank.options.regions.push_back({buffer->data(), buffer->size_bytes()});
  ASSIGN_OR_RETURN(made.comm, NcclCommunicator::Create(rank.options));
  return made;
}

// What a step does: a gather of parameters, a reduction of gradients. Small whole numbers, whose
// sums are the same in any order.
absl::Status Step(const Registered& memory) {
  const int rank = memory.comm->rank();
  auto* parameters = memory.parameters.data_as<float>();
  auto* gradients = memory.gradients.data_as<float>();
  auto* sums = memory.sums.data_as<float>();
  for (int64_t i = 0; i < kSlice; ++i) parameters[rank * kSlice + i] = static_cast<float>(rank);
  for (int64_t i = 0; i < kRanks * kSlice; ++i) gradients[i] = static_cast<float>(i + rank);
  RETURN_IF_ERROR(
      memory.comm->AllGatherMapped(memory.parameters.data_as<std::byte>(), kSlice * sizeof(float)));
  for (int64_t i = 0; i < kRanks * kSlice; ++i)
    RANK_EXPECT(parameters[i] == static_cast<float>(i / kSlice), absl::StrCat("parameter ", i));
  std::vector<const void*> sends(kRanks, nullptr);
  sends[rank] = gradients;
  std::vector<ElementRange> slices;
  for (int r = 0; r < kRanks; ++r) slices.push_back({r * kSlice, (r + 1) * kSlice});
  const std::vector<ElementRange> parts = {{0, kRanks * kSlice}};
  RETURN_IF_ERROR(memory.comm->ReduceScatterMapped(sends, slices, parts, DType::kFp32, 1.0, false,
                                                   sums, nullptr));
  for (int64_t i = 0; i < kSlice; ++i) {
    const int64_t element = rank * kSlice + i;
    RANK_EXPECT(sums[i] == static_cast<float>(kRanks * element + 3), absl::StrCat("sum ", i));
  }
  return absl::OkStatus();
}

NcclTestOptions Ranks(std::function<void(int rank, FakeNcclApi::Options*)> change) {
  NcclTestOptions options;
  options.size = kRanks;
  options.nccl = [change](int rank) {
    FakeNcclApi::Options nccl;
    change(rank, &nccl);
    return nccl;
  };
  return options;
}

void MeetAll(NcclTestRank& rank) {
  auto* met = reinterpret_cast<std::atomic<int>*>(rank.shared);
  met->fetch_add(1);
  while (met->load() < rank.size) std::this_thread::yield();
}

TEST(NcclRegistrationTest, AllThatMovesIsRegisteredFromTheFirstOperationOnAndNothingIsLeft) {
  const auto statuses = RunNcclRanks(
      Ranks([](int, FakeNcclApi::Options*) {}), [](NcclTestRank& rank) -> absl::Status {
        ASSIGN_OR_RETURN(Registered memory, Register(rank));
        RANK_EXPECT(memory.comm->is_registered());
        RANK_EXPECT(rank.nccl->num_registered() == 3, "parameters, gradients, staging");
        for (int step = 0; step < 3; ++step) RETURN_IF_ERROR(Step(memory));
        // One gather; a send to and a receive from each of the others.
        RANK_EXPECT(rank.nccl->num_registered_calls() == 3 * (1 + 2 * (kRanks - 1)));
        RANK_EXPECT(rank.nccl->num_registrations() == 3, "once, not for each step");
        memory.comm.reset();
        RANK_EXPECT(rank.nccl->num_registered() == 0);
        RANK_EXPECT(rank.nccl->num_left_to_abort() == 0);
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) EXPECT_OK(status);
}

struct Unable {
  const char* name;
  std::function<void(FakeNcclApi::Options*)> change;
};

class NcclRegistrationUnableTest : public testing::TestWithParam<Unable> {};

TEST_P(NcclRegistrationUnableTest, WhereOneRankCannotNoneDoesAndResultsAreTheSame) {
  const auto statuses =
      RunNcclRanks(Ranks([](int rank, FakeNcclApi::Options* nccl) {
                     if (rank == 1) GetParam().change(nccl);
                   }),
                   [](NcclTestRank& rank) -> absl::Status {
                     ASSIGN_OR_RETURN(Registered memory, Register(rank));
                     RANK_EXPECT(!memory.comm->is_registered());
                     RANK_EXPECT(memory.comm->could_register() == (rank.rank != 1));
                     RANK_EXPECT(rank.nccl->num_registered() == 0);
                     RETURN_IF_ERROR(Step(memory));
                     RANK_EXPECT(rank.nccl->num_registered_calls() == 0);
                     memory.comm.reset();
                     RANK_EXPECT(rank.nccl->num_left_to_abort() == 0);
                     return absl::OkStatus();
                   });
  for (const absl::Status& status : statuses) EXPECT_OK(status);
}

void FailAfter(int num_calls, FakeNcclApi::Options* nccl) {
  nccl->register_result = NcclResult::kInternalError;
  nccl->registers_before = num_calls;
}

INSTANTIATE_TEST_SUITE_P(
    All, NcclRegistrationUnableTest,
    testing::Values(
        Unable{"First", [](FakeNcclApi::Options* nccl) { FailAfter(0, nccl); }},
        Unable{"Last", [](FakeNcclApi::Options* nccl) { FailAfter(2, nccl); }},
        Unable{"NoSuchCall", [](FakeNcclApi::Options* nccl) { nccl->has_register = false; }},
        Unable{"ToldNotTo", [](FakeNcclApi::Options* nccl) { nccl->registers_nothing = true; }}),
    [](const testing::TestParamInfo<Unable>& info) { return info.param.name; });

TEST(NcclRegistrationTest, WithoutMemoryForStagingNothingIsRegistered) {
  NcclTestOptions options = Ranks([](int, FakeNcclApi::Options*) {});
  // Three regions of a rank fit, and its results, but no staging of the device's kind in addition.
  options.cuda.memory_bytes = 3 * (64 << 10) + 16384;
  const auto statuses = RunNcclRanks(options, [](NcclTestRank& rank) -> absl::Status {
    ASSIGN_OR_RETURN(Registered memory, Register(rank));
    RANK_EXPECT(!memory.comm->is_registered() && !memory.comm->could_register());
    RANK_EXPECT(rank.nccl->num_registrations() == 0);
    return Step(memory);
  });
  for (const absl::Status& status : statuses) EXPECT_OK(status);
}

TEST(NcclRegistrationTest, WhatIsRegisteredWhenTheEpochIsEndedGoesWithTheAbort) {
  const auto statuses = RunNcclRanks(
      Ranks([](int, FakeNcclApi::Options*) {}), [](NcclTestRank& rank) -> absl::Status {
        ASSIGN_OR_RETURN(Registered memory, Register(rank));
        RETURN_IF_ERROR(Step(memory));
        MeetAll(rank);  // One that still reduces would be ended.
        if (rank.rank == 0) memory.comm->Abort(absl::UnavailableError("the trainer is gone"));
        RANK_EXPECT(absl::IsAborted(memory.comm->Barrier()));
        RANK_EXPECT(rank.nccl->num_left_to_abort() == 3);
        RANK_EXPECT(rank.nccl->num_registered() == 0);
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) EXPECT_OK(status);
}

}  // namespace
}  // namespace tessera
