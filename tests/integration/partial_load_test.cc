// Models and checkpoints of which a part is loaded, or under other names, through a real
// coordinator, worker, executors (threads) and sessions.
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/model_file.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/name_selection.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tessera/optimizer_state.h"
#include "tessera/session.h"
#include "tessera/stored_model.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::ReadAll;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

// All that a job has of one parameter.
struct ParameterState {
  std::vector<float> values, first_moment, second_moment;
  int64_t updates = 0;

  bool operator==(const ParameterState& other) const {
    return values == other.values && first_moment == other.first_moment &&
           second_moment == other.second_moment && updates == other.updates;
  }
};
using States = std::map<std::string, ParameterState>;  // By name.

absl::StatusOr<States> ReadStates(Session* session) {
  States states;
  ASSIGN_OR_RETURN(const std::vector<float> all, ReadAll(session));
  ASSIGN_OR_RETURN(const TrainingProgress progress, ReadProgress(session));
  auto at = all.begin();
  size_t number = 0;
  for (int u = 0; u < session->num_units(); ++u) {
    const auto& parameters = session->layout().units[u].flat.parameters();
    for (const PlacedParameter& parameter : parameters) {
      ParameterState& state = states[parameter.spec.name];
      state.values.assign(at, at + parameter.numel);
      at += parameter.numel;
      state.updates = progress.update_counts[number++];
    }
    for (const StateArray array : {StateArray::kFirstMoment, StateArray::kSecondMoment}) {
      RETURN_IF_ERROR(ReadMoments(session, u, array, [&](int p, ConstValues values) {
        ParameterState& state = states[parameters[p].spec.name];
        const absl::Span<const float> moments = values.as<float>();
        (array == StateArray::kFirstMoment ? state.first_moment : state.second_moment)
            .assign(moments.begin(), moments.end());
      }));
    }
  }
  return states;
}

class PartialLoadTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 16;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    std::string folder = testing::TempDir() + "/tessera-part-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  // `prefix`: of all names of the model.
  absl::StatusOr<TrainerTeam> OpenTeam(int world_size, const std::string& prefix = "") {
    SessionOptions options = ToyOptions(*cluster_, absl::StrCat("job", ++num_jobs_), world_size);
    for (UnitSpec& unit : options.model.units) {
      for (TensorSpec& spec : unit.parameters) spec.name = prefix + spec.name;
    }
    return TrainerTeam::Open(options);
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
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
  // A checkpoint of a job of 3 ranks that took 5 steps; its state under the plain names.
  States SaveFiveSteps(const std::string& path, const std::string& prefix = "") {
    absl::StatusOr<TrainerTeam> team = OpenTeam(3, prefix);
    EXPECT_OK(team);
    EXPECT_OK(team->TrainTo(5));
    EXPECT_OK(team->RunAll([&](Session* session) { return SaveCheckpoint(session, path); }));
    States plain;
    for (const auto& [name, state] : StatesOf(&*team)) plain[name.substr(prefix.size())] = state;
    return plain;
  }
  // One file with these tensors of zeroes.
  static void Write(const std::string& path, const std::vector<TensorSpec>& tensors) {
    ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, PlaceTensors(tensors, {}));
    ASSERT_OK(ModelFile::Create(path, header));
    ASSERT_OK(ModelFile::Publish(path));
  }
  std::unique_ptr<LocalCluster> cluster_;
  std::string folder_;
  int num_jobs_ = 0;
};

TEST_F(PartialLoadTest, OfACheckpointWhatIsLeftOutKeepsValuesMomentsCountsAndStep) {
  const States saved = SaveFiveSteps(Path("c"));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(2));
  const States before = StatesOf(&team);
  LoadCheckpointOptions options;
  options.names.exclude = {"unit1.*", "unit0.bias"};  // Whole units, and parts of one.
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const LoadedCheckpoint loaded, LoadCheckpoint(session, Path("c"), options));
    EXPECT_EQ(loaded.step, 5);
    EXPECT_EQ(session->next_step(), 3) << "the job's own";
    EXPECT_THAT(loaded.missing, IsEmpty());
    EXPECT_THAT(loaded.unexpected, IsEmpty());
    return absl::OkStatus();
  }));
  const auto left_out = [](const std::string& name) {
    return absl::StartsWith(name, "unit1.") || name == "unit0.bias";
  };
  const States after = StatesOf(&team);
  ASSERT_EQ(after.size(), 6);
  for (const auto& [name, state] : after)
    EXPECT_TRUE(state == (left_out(name) ? before : saved).at(name)) << name;
  EXPECT_FALSE(saved.at("unit1.bias") == before.at("unit1.bias"));
  ASSERT_OK(team.TrainTo(4));
  for (const auto& [name, state] : StatesOf(&team))
    EXPECT_EQ(state.updates, left_out(name) ? 4 : 7) << name;
}

TEST_F(PartialLoadTest, CheckpointUnderOtherNamesIsLoadedWholeAndGoesOnToTheSameBits) {
  const States saved = SaveFiveSteps(Path("c"), "model.");
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  LoadCheckpointOptions options;
  options.names.renames = {{"model.", ""}};
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(LoadCheckpoint(session, Path("c"), options).status());
    EXPECT_EQ(session->next_step(), 6);
    return absl::OkStatus();
  }));
  EXPECT_TRUE(StatesOf(&team) == saved);
}

TEST_F(PartialLoadTest, OfAModelWhatIsLeftOutStaysWhateverTheFileHasOfIt) {
  std::vector<TensorSpec> tensors = {{"model.unit0.bias", {5}},
                                     {"model.unit1.weight", {2, 2}, DType::kInt32},
                                     {"optimizer.step", {1}, DType::kInt64}};
  Write(Path("m"), tensors);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(2));
  States expected = StatesOf(&team);
  LoadOptions options;
  options.names.renames = {{"model.", ""}};
  options.names.include = {"unit0.*"};
  options.names.exclude = {"*.weight"};
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const LoadReport report, LoadModel(session, Path("m"), options));
    EXPECT_THAT(report.missing, IsEmpty());
    EXPECT_THAT(report.unexpected, IsEmpty());
    return absl::OkStatus();
  }));
  expected["unit0.bias"].values.assign(5, 0.0f);
  EXPECT_TRUE(StatesOf(&team) == expected);
}

TEST_F(PartialLoadTest, JobWithoutValuesRefusesAPartAndTakesTheWhole) {
  SaveFiveSteps(Path("c"));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  NameSelection part;
  part.exclude = {"unit1.bias"};
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                AllOf(HasSubstr("no values yet"), HasSubstr("'unit1.bias'")));
  EXPECT_THAT(team.Run([&](Session* session) {
    LoadCheckpointOptions options;
    options.names = part;
    return LoadCheckpoint(session, Path("c"), options).status();
  }),
              Each(refused));
  EXPECT_THAT(team.Run([&](Session* session) {
    return LoadModel(session, Path("c/model.safetensors"), {true, part}).status();
  }),
              Each(refused));
  EXPECT_FALSE(team.session(0)->initialized());
  part.exclude = {"unit9.*"};  // Nothing of the model's.
  ASSERT_OK(team.RunAll([&](Session* session) {
    return LoadModel(session, Path("c/model.safetensors"), {true, part}).status();
  }));
}

TEST_F(PartialLoadTest, RanksThatAskForDifferentPartsAreToldWhoAndInWhat) {
  std::vector<TensorSpec> tensors;
  for (const UnitSpec& unit : ToyModel(3).units)
    tensors.insert(tensors.end(), unit.parameters.begin(), unit.parameters.end());
  Write(Path("m"), tensors);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(1));
  const States before = StatesOf(&team);
  const auto load = [&](const LoadOptions& of_rank_2) {
    return team.Run([&](Session* session) {
      const LoadOptions options = session->rank() == 2 ? of_rank_2 : LoadOptions();
      return LoadModel(session, Path("m"), options).status();
    });
  };
  const auto refused = [](const std::string& text) {
    return Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr(absl::StrCat("ranks 0 and 2 differ in ", text))));
  };
  EXPECT_THAT(load({true, {{}, {}, {"unit1.*"}}}), refused("the names to exclude"));
  EXPECT_THAT(load({true, {{}, {"unit1.*"}, {}}}), refused("the names to include"));
  EXPECT_THAT(load({true, {{{"x.", ""}}, {}, {}}}), refused("the names to rename"));
  EXPECT_THAT(load({false}), refused("strict"));
  EXPECT_TRUE(StatesOf(&team) == before);
  EXPECT_THAT(load({true}), Each(IsOk()));
}

}  // namespace
}  // namespace tessera
