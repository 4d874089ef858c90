// Checkpoints of hybrid jobs: saved, trained on and loaded again; loaded into plain fully sharded
// jobs and the other way round; and into groups of another layout. DCP2-1, DCP2-2, DCP4-1, DCP4-2.
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tests/testing/toy_state.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::ReadState;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using State = testing_support::ToyState;

// Ranks on how many workers, how many on each, and whether these are groups of a hybrid job.
struct World {
  int num_workers = 1, ranks_a_worker = 1;
  bool is_hybrid = false;

  int size() const { return num_workers * ranks_a_worker; }
};

// A job of that world on workers of its own.
struct Job {
  std::unique_ptr<LocalCluster> cluster;
  std::unique_ptr<TrainerTeam> team;
};

class HybridCheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-hybrid-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // `rows` of the first parameter: divisible by the ranks of a group, or not.
  static absl::StatusOr<Job> Start(const World& world, int64_t rows = 13) {
    Job job;
    LocalCluster::Options hosts;
    hosts.num_workers = world.num_workers;
    hosts.num_devices = world.ranks_a_worker;
    ASSIGN_OR_RETURN(job.cluster, LocalCluster::Start(hosts));
    SessionOptions options = ToyOptions(*job.cluster, "job", world.size());
    options.model = ToyModel(3, /*with_frozen=*/true);
    options.model.units[0].parameters[0].shape[0] = rows;
    if (world.is_hybrid) {
      options.config.strategy = Strategy::kHybridShard;
      options.config.shard_group_size = world.ranks_a_worker;
    }
    std::vector<std::string> workers;
    for (int rank = 0; rank < world.size(); ++rank)
      workers.push_back(job.cluster->worker_address(rank / world.ranks_a_worker));
    ASSIGN_OR_RETURN(TrainerTeam team, TrainerTeam::Open(options, workers));
    job.team = std::make_unique<TrainerTeam>(std::move(team));
    return job;
  }
  // What each rank sees, which is the same on all.
  static State StateOf(Job* job) {
    std::vector<State> states(job->team->session(0)->config().world_size);
    EXPECT_OK(job->team->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(states[session->rank()], ReadState(session));
      return absl::OkStatus();
    }));
    for (const State& state : states) EXPECT_TRUE(state == states[0]);
    EXPECT_FALSE(states[0].moments.empty());
    return states[0];
  }
  absl::Status Save(Job* job, const std::string& name) const {
    return job->team->RunAll([&](Session* session) { return SaveCheckpoint(session, Path(name)); });
  }
  absl::Status Load(Job* job, const std::string& name) const {
    return job->team->RunAll(
        [&](Session* session) { return LoadCheckpoint(session, Path(name)).status(); });
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  std::string folder_;
};

constexpr World kHybrid = {2, 2, true}, kPlain = {2, 2, false};

// DCP4-1.
TEST_F(HybridCheckpointTest, SavedTrainedAndLoadedItIsAsSavedEvenAndUneven) {
  for (const int64_t rows : {12, 13}) {
    SCOPED_TRACE(rows);
    ASSERT_OK_AND_ASSIGN(Job job, Start(kHybrid, rows));
    ASSERT_OK(job.team->TrainTo(2));
    const State saved = StateOf(&job);
    ASSERT_OK(Save(&job, "c"));
    ASSERT_OK(job.team->TrainTo(4));
    const State later = StateOf(&job);
    EXPECT_FALSE(later.parameters == saved.parameters);
    ASSERT_OK(Load(&job, "c"));
    EXPECT_TRUE(StateOf(&job) == saved);
    ASSERT_OK(job.team->TrainTo(4));
    EXPECT_TRUE(StateOf(&job) == later) << "each replica went on alike";
  }
}

// DCP4-2, and DCP2-2: optimizers that never stepped get all of the state.
TEST_F(HybridCheckpointTest, PlainJobLoadsAHybridOnesAndAHybridOneAPlainOnes) {
  for (const auto& [from, to] :
       {std::pair(kHybrid, kPlain), std::pair(kPlain, kHybrid),
        std::pair(kHybrid, World{1, 3, false}), std::pair(World{1, 1, false}, kHybrid)}) {
    SCOPED_TRACE(absl::StrCat(from.num_workers, "x", from.ranks_a_worker, " to ", to.num_workers,
                              "x", to.ranks_a_worker));
    State saved;
    {
      ASSERT_OK_AND_ASSIGN(Job job, Start(from));
      ASSERT_OK(job.team->TrainTo(3));
      saved = StateOf(&job);
      ASSERT_OK(Save(&job, "c"));
    }
    ASSERT_OK_AND_ASSIGN(Job next, Start(to));
    ASSERT_OK(Load(&next, "c"));
    EXPECT_TRUE(StateOf(&next) == saved);
    // The same ranks of the same workers continue to the same bits, whatever their strategy.
    if (from.size() != to.size()) continue;
    ASSERT_OK(next.team->TrainTo(5));
    ASSERT_OK_AND_ASSIGN(Job whole, Start(from));
    ASSERT_OK(whole.team->TrainTo(5));
    EXPECT_TRUE(StateOf(&next) == StateOf(&whole));
  }
}

// DCP2-1.
TEST_F(HybridCheckpointTest, GroupsOfAnotherLayoutLoadIt) {
  State saved;
  {
    ASSERT_OK_AND_ASSIGN(Job job, Start({2, 2, true}));
    ASSERT_OK(job.team->TrainTo(2));
    saved = StateOf(&job);
    ASSERT_OK(Save(&job, "c"));
  }
  std::string from = "c";
  for (const World& world : {World{3, 1, true}, World{2, 3, true}, World{3, 2, true},
                             World{2, 2, false}, World{2, 2, true}}) {
    SCOPED_TRACE(absl::StrCat(world.num_workers, " groups of ", world.ranks_a_worker));
    ASSERT_OK_AND_ASSIGN(Job next, Start(world));
    ASSERT_OK(Load(&next, from));
    EXPECT_TRUE(StateOf(&next) == saved);
    from = absl::StrCat("after-", world.num_workers, "x", world.ranks_a_worker, world.is_hybrid);
    ASSERT_OK(Save(&next, from));
    // Replicas continue alike, also if each group is one rank (C4-18): StateOf compares all ranks.
    ASSERT_OK(next.team->TrainTo(saved.step + 1));
    EXPECT_FALSE(StateOf(&next) == saved);
  }
}

// DCPX-1 (what replicas have is written once), C2-7, C2-9: no rank copies or writes more than its
// share, rank 0 neither.
TEST_F(HybridCheckpointTest, EachRankCopiesAndWritesItsShareAndNoReplicaWritesAgain) {
  for (const World& world : {kPlain, kHybrid}) {
    SCOPED_TRACE(world.is_hybrid);
    ASSERT_OK_AND_ASSIGN(Job job, Start(world));
    ASSERT_OK(job.team->TrainTo(1));
    std::vector<SaveStatus> statuses(world.size());
    ASSERT_OK(job.team->RunAll([&](Session* session) -> absl::Status {
      SaveOptions options;
      options.in_background = true;
      RETURN_IF_ERROR(SaveCheckpoint(session, Path("c"), {}, options));
      RETURN_IF_ERROR(AwaitSave(session));
      ASSIGN_OR_RETURN(statuses[session->rank()], GetSaveStatus(session));
      return absl::OkStatus();
    }));
    // Of a parameter and its two moments; a shard is of whole sixteens of elements.
    const int group_size = world.is_hybrid ? world.ranks_a_worker : world.size();
    int64_t state_bytes = 0, most_of_a_rank_bytes = 0;
    for (const UnitLayout& unit : job.team->session(0)->layout().units) {
      int64_t padded_elements = 0;
      for (const PlacedParameter& parameter : unit.flat.parameters()) {
        state_bytes += parameter.numel * 4 * (parameter.spec.requires_grad ? 3 : 1);
        padded_elements += parameter.numel + 3;
      }
      most_of_a_rank_bytes += (padded_elements / group_size + 16) * 4 * 3;
    }
    ASSERT_LT(most_of_a_rank_bytes, state_bytes * 3 / 4);
    int64_t written_bytes = 0;
    for (const SaveStatus& status : statuses) {
      EXPECT_EQ(status.written_bytes, status.all_bytes);
      EXPECT_LE(status.all_bytes, most_of_a_rank_bytes);
      written_bytes += status.written_bytes;
    }
    EXPECT_EQ(written_bytes, state_bytes);
  }
}

// C4-16, DCPX-2 (shards without an element).
TEST_F(HybridCheckpointTest, RanksWithoutAnElementSaveItAndLoadIt) {
  const auto start = [](int world_size) -> absl::StatusOr<Job> {
    Job job;
    LocalCluster::Options host;
    host.num_devices = world_size;
    ASSIGN_OR_RETURN(job.cluster, LocalCluster::Start(host));
    SessionOptions options = ToyOptions(*job.cluster, "job", world_size);
    options.model = ModelSpec();
    options.model.units.push_back({"one", {{"one", {1}, DType::kFp32}}});
    options.model.units.push_back({"two", {{"two", {2, 1}, DType::kFp32}}});
    ASSIGN_OR_RETURN(TrainerTeam team, TrainerTeam::Open(options));
    job.team = std::make_unique<TrainerTeam>(std::move(team));
    return job;
  };
  State saved;
  std::string from;
  for (const int world_size : {8, 3, 1, 8}) {
    SCOPED_TRACE(world_size);
    ASSERT_OK_AND_ASSIGN(Job job, start(world_size));
    if (from.empty()) {
      ASSERT_OK(job.team->TrainTo(2));
      saved = StateOf(&job);
    } else {
      ASSERT_OK(Load(&job, from));
      EXPECT_TRUE(StateOf(&job) == saved);
    }
    absl::StrAppend(&from, "c", world_size);
    ASSERT_OK(Save(&job, from));
  }
}

}  // namespace
}  // namespace tessera
