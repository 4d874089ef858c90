// Checkpoints of one model that become parts of another one. E2E-7, E2E-9.
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tessera/optimizer_state.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing_support::InitializeToy;
using testing_support::ReadAll;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

// Of one parameter.
struct State {
  std::vector<float> values;
  std::vector<std::vector<float>> moments;
  int64_t updates = 0;

  bool operator==(const State& other) const {
    return values == other.values && moments == other.moments && updates == other.updates;
  }
};
using States = std::map<std::string, State>;  // By name.

absl::StatusOr<States> ReadStates(Session* session) {
  ASSIGN_OR_RETURN(const std::vector<float> all, ReadAll(session));
  ASSIGN_OR_RETURN(const TrainingProgress progress, ReadProgress(session));
  States states;
  auto at = all.begin();
  size_t number = 0;
  for (int u = 0; u < session->num_units(); ++u) {
    const auto& parameters = session->layout().units[u].flat.parameters();
    for (const PlacedParameter& parameter : parameters) {
      State& state = states[parameter.spec.name];
      state.values.assign(at, at + parameter.numel);
      at += parameter.numel;
      state.updates = progress.update_counts[number++];
    }
    for (const StateArray array : MomentsOf(session->config().optimizer)) {
      RETURN_IF_ERROR(ReadMoments(session, u, array, [&](int p, ConstValues values) {
        const absl::Span<const float> moments = values.as<float>();
        states[parameters[p].spec.name].moments.emplace_back(moments.begin(), moments.end());
      }));
    }
  }
  return states;
}

UnitSpec Unit(const std::string& name, bool requires_grad = true) {
  UnitSpec unit = {name, {{name + ".weight", {5, 7}, DType::kFp32, requires_grad}}};
  unit.parameters.push_back({name + ".bias", {5}, DType::kFp32, requires_grad});
  return unit;
}

class CheckpointPartsOfModelsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-models-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    LocalCluster::Options options;
    options.num_devices = 12;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<TrainerTeam> Open(const std::vector<UnitSpec>& units, int world_size) {
    SessionOptions options = ToyOptions(*cluster_, absl::StrCat("job", ++num_jobs_), world_size);
    options.model.units = units;
    return TrainerTeam::Open(options);
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  absl::Status Save(TrainerTeam* team, const std::string& name) const {
    return team->RunAll([&](Session* session) { return SaveCheckpoint(session, Path(name)); });
  }
  // Rank 0's view.
  static States StatesOf(TrainerTeam* team) {
    States states;
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(States read, ReadStates(session));
      if (session->rank() == 0) states = std::move(read);
      return absl::OkStatus();
    }));
    return states;
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::string folder_;
  int num_jobs_ = 0;
};

// E2E-7: what was trained before is the frozen trunk of a larger model, whose own training is saved
// and continues to the same bits.
TEST_F(CheckpointPartsOfModelsTest, TrunkIsLoadedIntoALargerModelFrozenAndItsTrainingIsResumed) {
  States trunk;
  {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open({Unit("in"), Unit("out")}, 3));
    ASSERT_OK(team.TrainTo(3));
    trunk = StatesOf(&team);
    ASSERT_OK(Save(&team, "pretrained"));
  }
  const std::vector<UnitSpec> larger = {Unit("trunk.in", false), Unit("trunk.out", false),
                                        Unit("head")};
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(larger, 2));
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    LoadCheckpointOptions options;
    options.model_only = true;
    options.strict = false;
    options.names.renames = {{"in.", "trunk.in."}, {"out.", "trunk.out."}};
    ASSIGN_OR_RETURN(const LoadedCheckpoint loaded,
                     LoadCheckpoint(session, Path("pretrained"), options));
    EXPECT_THAT(loaded.missing, ElementsAre("head.weight", "head.bias"));
    EXPECT_THAT(loaded.unexpected, IsEmpty());
    EXPECT_EQ(session->next_step(), 1) << "it begins to train";
    return absl::OkStatus();
  }));
  const States begun = StatesOf(&team);
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK(Save(&team, "tuned"));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(Path("tuned")));
  for (const auto& [tensor, crc32] : manifest.files.at("optimizer.safetensors").tensors)
    EXPECT_TRUE(absl::StartsWith(tensor, "state.head.")) << tensor;
  ASSERT_OK(team.TrainTo(5));
  const States expected = StatesOf(&team);
  for (const auto& [name, state] : expected) {
    if (absl::StartsWith(name, "head.")) {
      EXPECT_FALSE(state.values == begun.at(name).values) << name;
    } else {
      EXPECT_EQ(state.values, trunk.at(name.substr(6)).values) << name;
      EXPECT_EQ(state.updates, 0) << name;
    }
  }
  ASSERT_OK_AND_ASSIGN(TrainerTeam resumed, Open(larger, 2));
  ASSERT_OK(resumed.RunAll(
      [&](Session* session) { return LoadCheckpoint(session, Path("tuned")).status(); }));
  ASSERT_OK(resumed.TrainTo(5));
  EXPECT_TRUE(StatesOf(&resumed) == expected);
}

// E2E-9: each stage of a pipeline is a job and has a checkpoint; a job of the whole model takes
// both, with their optimizers' state.
TEST_F(CheckpointPartsOfModelsTest, CheckpointsOfStagesAreLoadedIntoOneModel) {
  States saved;
  for (const auto& [stage, world_size, last_step] :
       {std::tuple("in", 2, 3), std::tuple("out", 3, 4)}) {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open({Unit(stage)}, world_size));
    ASSERT_OK(team.TrainTo(last_step));
    saved.merge(StatesOf(&team));
    ASSERT_OK(Save(&team, stage));
  }
  ASSERT_EQ(saved.size(), 4);
  ASSERT_OK_AND_ASSIGN(TrainerTeam whole, Open({Unit("in"), Unit("out")}, 3));
  ASSERT_OK(whole.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    for (const std::string stage : {"in", "out"}) {
      LoadCheckpointOptions options;
      options.names.include = {stage + ".*"};
      RETURN_IF_ERROR(LoadCheckpoint(session, Path(stage), options).status());
    }
    return absl::OkStatus();
  }));
  EXPECT_TRUE(StatesOf(&whole) == saved);
  ASSERT_OK(whole.TrainTo(2));
  for (const auto& [name, state] : StatesOf(&whole)) {
    EXPECT_EQ(state.updates, saved.at(name).updates + 2) << name;
    EXPECT_FALSE(state.values == saved.at(name).values) << name;
  }
}

}  // namespace
}  // namespace tessera
