#include "coordinator/service/coordinator_host.h"

#include <memory>
#include <utility>

#include "base/status_matchers.h"
#include "coordinator/core/job_spec.h"
#include "coordinator/storage/memory_journal.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(CoordinatorHostTest, WhatIsReadLateOfAStreamThatANewerOneReplacedChangesNothing) {
  ASSERT_OK_AND_ASSIGN(const auto host,
                       CoordinatorHost::Create({}, std::make_unique<MemoryJournal>()));
  const Sender worker = {WorkerId("w"), Incarnation(1)};
  Member member;
  member.incarnation = worker.incarnation;
  member.num_devices = 1;
  member.address = "unix:/w";
  ASSERT_OK(host->RegisterWorker({worker.worker, member}));
  const auto older = std::make_shared<Outbox>([] {}), newer = std::make_shared<Outbox>([] {});
  ASSERT_OK(host->Connect(worker, "", older));
  ModelSpec model;
  model.units.push_back({"unit", {{"w", {4}}}});
  JobConfig config;
  config.world_size = 1;
  ASSERT_OK_AND_ASSIGN(JobSpecPtr spec, MakeJobSpec(std::move(model), config, -1));
  ASSERT_OK(host->CreateJob({"request", JobId("job"), std::move(spec)}));
  ASSERT_OK_AND_ASSIGN(const JobView before, host->GetJob(JobId("job")));
  ASSERT_EQ(before.status.epoch, Epoch(1));
  ASSERT_OK(host->Connect(worker, "", newer));
  const RankFailure failure = {JobId("job"), before.generation, Epoch(1), Rank(0), "it ended"};
  EXPECT_THAT(host->OnStreamEvent(worker, older, failure),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("newer stream of worker 'w'")));
  EXPECT_EQ(host->GetJob(JobId("job"))->status.epoch, Epoch(1));
  EXPECT_OK(host->OnStreamEvent(worker, newer, failure));
  EXPECT_EQ(host->GetJob(JobId("job"))->status.epoch, Epoch(2));
  host->Disconnect(worker.worker, older);  // Which is not the one that is connected.
  EXPECT_TRUE(host->SendCommand(worker.worker, DropJob{JobId("job"), before.generation}));
  host->Stop();
}

}  // namespace
}  // namespace tessera::coordinator
