#include "worker/keeper/job_regions.h"

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "shm/fd_passing.h"
#include "shm/flight_ring.h"
#include "worker/device/cuda/cuda_device_memory.h"
#include "worker/device/cuda/fake_cuda_api.h"
#include "worker/device/host/host_rank_device.h"
#include "worker/executor/executor_memory.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

v1::Job JobOf(const JobConfig& config) {
  ModelSpec model;
  model.units.push_back({"root", {{"w", {1024}}}});
  v1::Job job;
  job.set_job_id("toy");
  *job.mutable_model() = EncodeModel(model);
  *job.mutable_config() = EncodeJobConfig(config);
  job.add_placements()->set_worker_id("w");
  return job;
}

TEST(JobRegionsTest, ShardsOfAGpuAreNotWatched) {
  FakeCudaApi api{FakeCudaApi::Options()};
  ASSERT_OK_AND_ASSIGN(const auto gpu, CudaDeviceMemory::Create(&api, 0));
  JobConfig config;
  config.shard_check_interval_steps = 1;
  const v1::Job job = JobOf(config);
  ASSERT_OK_AND_ASSIGN(const LocalRanks local, LocalRanksOf(job, "w"));
  EXPECT_THAT(JobRegions::Create(job, local, gpu.get()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("shard_check_interval_steps"), HasSubstr("cpu_offload"))));
  EXPECT_OK(JobRegions::Create(job, local));
  config.cpu_offload = true;
  EXPECT_OK(JobRegions::Create(JobOf(config), local, gpu.get()));
}

TEST(JobRegionsTest, WhatAJobTakesIsReservedUntilItEnds) {
  constexpr int64_t kBytes = 64 << 20;
  MemoryBudget budget(kBytes, [] { return int64_t{1} << 30; });
  const v1::Job job = JobOf(JobConfig());
  ASSERT_OK_AND_ASSIGN(const LocalRanks local, LocalRanksOf(job, "w"));
  {
    ASSERT_OK_AND_ASSIGN(const JobRegions regions,
                         JobRegions::Create(job, local, nullptr, &budget));
    // Parameters, their gradients and the state: 9 arrays of 4 KiB.
    EXPECT_LE(budget.free_bytes(), kBytes - 9 * 4096);
  }
  EXPECT_EQ(budget.free_bytes(), kBytes);
}

TEST(JobRegionsTest, ExecutorRefusesAPageOfAnotherVersionNamingBoth) {
  const v1::Job job = JobOf(JobConfig());
  ASSERT_OK_AND_ASSIGN(const LocalRanks local, LocalRanksOf(job, "w"));
  ASSERT_OK_AND_ASSIGN(const JobRegions regions, JobRegions::Create(job, local));
  // The regions' own mapping of it is read-only.
  const int flight_fd = regions.Descriptors().at("0").back();
  ASSERT_OK_AND_ASSIGN(const Mapping mapping, Mapping::CreateWhole(flight_fd, Access::kReadWrite));
  auto* const flight = reinterpret_cast<FlightRing*>(mapping.data());
  ASSERT_OK_AND_ASSIGN(const auto sockets, CreatePacketSocketPair());
  const auto set_up = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(Packet setup, ReceivePacket(sockets.second.get()));
    return ExecutorMemory::FromSetup(std::move(setup), MakeHostRankDevice).status();
  };
  ASSERT_OK(regions.SendSetup(sockets.first.get(), job, Rank(0), ""));
  ASSERT_OK(set_up());
  const auto expect_refused = [&](uint32_t* version, const std::string& page,
                                  const std::string& own) {
    ASSERT_OK(regions.SendSetup(sockets.first.get(), job, Rank(0), ""));
    ++*version;  // After SendSetup, which writes the control page's version.
    EXPECT_THAT(std::string(set_up().message()),
                AllOf(HasSubstr(absl::StrCat(page, *version)), HasSubstr(own)));
    --*version;
  };
  expect_refused(&regions.control(Rank(0))->version, "the control page has version ",
                 absl::StrCat("this executor's has ", kControlPageVersion));
  expect_refused(&regions.group()->version, "the ranks' page has version ",
                 absl::StrCat("this executor's has ", kGroupPageVersion));
  expect_refused(&flight->version, "flight ring: version ",
                 absl::StrCat("this program knows version ", kFlightRingVersion));
}

}  // namespace
}  // namespace tessera
