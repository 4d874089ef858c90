// Whatever would overwrite a version of the state that somebody copies waits until it is let go.
// The test is that somebody.
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/integration/version_changes.h"
#include "tests/testing/process_view.h"
#include "tests/testing/region_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/engine/group_page.h"

namespace tessera {
namespace {

using testing_support::Eventually;
using testing_support::MapRegionOf;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using testing_support::VersionOf;

class HeldStateTest : public testing::TestWithParam<VersionChange> {};

TEST_P(HeldStateTest, IsOverwrittenByNobodyUntilItIsLetGo) {
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start({2}));
  SessionOptions options = ToyOptions(*cluster, "toy", 2);
  options.config.optimizer_in_backward = GetParam().optimizer_in_backward;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  const std::string saved = testing::TempDir() + "/held-" + GetParam().name + ".safetensors";
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(team.RunAll([&](Session* session) { return session->Save(saved); }));
  ASSERT_OK(team.TrainTo(3));

  const Mapping group = MapRegionOf(getpid(), "toy/group");
  const Mapping state = MapRegionOf(getpid(), "toy/1/state");
  ASSERT_TRUE(group.valid() && state.valid());
  RankRecord& record = reinterpret_cast<GroupPage*>(group.data())->ranks[1];
  ASSERT_OK_AND_ASSIGN(const int64_t held, HoldNewest(&record.hold, record.applied_step));
  EXPECT_EQ(held, 3);
  const std::string before = VersionOf(state, held);
  ASSERT_OK(GetParam().make(&team, 4, saved)) << "the other version is free";
  std::thread second([&] { EXPECT_OK(GetParam().make(&team, 5, saved)); });
  EXPECT_TRUE(Eventually([&] { return record.hold.changes.sleepers.load() > 0; }));
  EXPECT_EQ(VersionOf(state, held), before);
  EXPECT_TRUE(Release(&record.hold, held));
  second.join();
  EXPECT_NE(VersionOf(state, held), before);
}

INSTANTIATE_TEST_SUITE_P(Changes, HeldStateTest, testing::ValuesIn(VersionChanges()),
                         [](const testing::TestParamInfo<VersionChange>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace tessera
