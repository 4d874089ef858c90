// When values that clients set take their place: not in a job without values, after readers of what
// they overwrite, with a checkpoint's moments under other names, before the next update of
// trainers' own optimizers.
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_shards.h"
#include "tests/integration/live_put_fixture.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/process_view.h"
#include "tests/testing/region_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/engine/group_page.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::CliResult;
using testing_support::DescriptorsOf;
using testing_support::Eventually;
using testing_support::LiveReading;
using testing_support::MapRegionOf;
using testing_support::PutOutcome;
using testing_support::PutWhileTraining;
using testing_support::ReadStored;
using testing_support::RunTessera;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using testing_support::VersionOf;
using testing_support::WritePutFile;

using LivePutOfOneTest = LivePutTest;

// Descriptors of files without a name that this process has in /tmp.
int CountSpoolFiles() {
  int count = 0;
  for (const auto& [fd, what] : DescriptorsOf(getpid()))
    count += absl::StartsWith(what, "/tmp/#") && absl::EndsWith(what, "(deleted)") ? 1 : 0;
  return count;
}

TEST_F(LivePutOfOneTest, JobWithoutValuesIsRefused) {
  const auto cluster = StartCluster({"", 1, 1, 1});
  WritePutFile(Path("put.safetensors"), AllParameters(ToyModel(3, true)));
  const std::vector<std::string> args = {"put", "--job", "toy", "--from", Path("put.safetensors")};
  EXPECT_THAT(RunTessera(cluster->coordinator_address(), args).err, HasSubstr("NOT_FOUND"));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, {"", 1, 1, 1}));
  EXPECT_THAT(RunTessera(cluster->coordinator_address(), args).err,
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("the job has no values yet")));
}

TEST_F(LivePutOfOneTest, MomentsAreRenamedWithTheirParameters) {
  const Case c = {"", 1, 4, 2};
  const auto cluster = StartCluster(c);
  SessionOptions options = ToyOptions(*cluster, "before", 1);
  options.model = ToyModel(3);
  for (UnitSpec& unit : options.model.units) {
    for (TensorSpec& parameter : unit.parameters) parameter.name = "old." + parameter.name;
  }
  ASSERT_OK_AND_ASSIGN(TrainerTeam before, TrainerTeam::Open(options));
  ASSERT_OK(before.TrainTo(3));
  const std::string path = Path("saved");
  ASSERT_OK(before.RunAll([&](Session* session) { return SaveCheckpoint(session, path); }));

  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, c));
  ASSERT_OK(team.TrainTo(1));
  const PutOutcome put = Put(*cluster, &team, {"--from", path, "--moments", "--rename", "old.="});
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  int moments = 0;
  for (const auto& [name, value] : ReadStored(path)) {
    const bool is_state = absl::StartsWith(name, "state.old.");
    const std::string in_job = is_state ? absl::StrCat("state.", name.substr(10)) : name.substr(4);
    moments += is_state ? 1 : 0;
    ASSERT_EQ(put.after.values.count(in_job), 1u) << in_job;
    EXPECT_EQ(put.after.values.at(in_job), value) << name;
  }
  EXPECT_GE(moments, 6);
}

// The version that a put makes takes the place of the one before the step that it follows.
TEST_F(LivePutOfOneTest, WaitsForAReaderOfWhatItWouldOverwrite) {
  const Case c = {"", 1, 2, 2};
  const auto cluster = StartCluster(c);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, c));
  ASSERT_OK(team.TrainTo(3));
  const Mapping group = MapRegionOf(getpid(), "toy/group");
  const Mapping state = MapRegionOf(getpid(), "toy/1/state");
  ASSERT_TRUE(group.valid() && state.valid());
  WritePutFile(Path("put.safetensors"), AllParameters(ToyModel(3, true)));
  CliResult result;
  std::thread putter([&] {
    result = RunTessera(cluster->coordinator_address(),
                        {"put", "--job", "toy", "--from", Path("put.safetensors")});
  });
  // The worker's file, and that of each rank.
  EXPECT_TRUE(Eventually([] { return CountSpoolFiles() == 3; }));
  RankRecord& record = reinterpret_cast<GroupPage*>(group.data())->ranks[1];
  ASSERT_OK_AND_ASSIGN(const int64_t held, HoldNewest(&record.hold, record.applied_step));
  EXPECT_EQ(held, 3);
  const std::string before = VersionOf(state, held);
  std::thread trainer([&] { EXPECT_OK(team.TrainTo(4)); });
  EXPECT_TRUE(Eventually([&] { return record.hold.changes.sleepers.load() > 0; }));
  EXPECT_EQ(VersionOf(state, held), before);
  EXPECT_TRUE(Release(&record.hold, held));
  trainer.join();
  // It may have been given to a rank too late for this step.
  ASSERT_OK(team.TrainTo(5));
  putter.join();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(VersionOf(state, held), before);
  EXPECT_TRUE(Eventually([] { return CountSpoolFiles() == 0; })) << "nothing is left behind";
}

// Trainers whose own optimizers write their shards have the values before their next update.
TEST_F(LivePutOfOneTest, OptimizersOfTrainersGoOnFromTheValuesThatWerePut) {
  const Case c = {"", 1, 2, 2};
  const auto cluster = StartCluster(c);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, c));
  ASSERT_OK(team.TrainTo(1));
  std::vector<std::unique_ptr<LocalShards>> shards(2);
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(shards[session->rank()], LocalShards::Open(session));
    return absl::OkStatus();
  }));
  // Each writes what it has, as an optimizer without gradients does.
  const auto step = [&] {
    EXPECT_OK(team.RunAll([&](Session* session) {
      return session->RunStep([&]() -> absl::Status {
        RETURN_IF_ERROR(shards[session->rank()]->Begin().status());
        return shards[session->rank()]->Commit();
      });
    }));
  };
  WritePutFile(Path("put.safetensors"), AllParameters(ToyModel(3, true)));
  const PutOutcome put =
      PutWhileTraining(cluster->coordinator_address(), "toy", {"--from", Path("put.safetensors")},
                       Path("now.safetensors"), step);
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  step();
  const LiveReading now = Read(*cluster);
  EXPECT_EQ(now.committed_step, put.after.committed_step + 1);
  for (const auto& [name, tensor] : ReadStored(Path("put.safetensors")))
    EXPECT_EQ(now.values.at(name), tensor) << name;
}

}  // namespace
}  // namespace tessera
