// Optimizers' states that PyTorch's DCP saved, loaded into jobs through a real coordinator, worker,
// executors (threads) and sessions.
#include <fcntl.h>
#include <sys/stat.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tessera/stored_model.h"
#include "tests/conformance/dcp/golden_folders.h"
#include "tests/testing/toy_state.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::GoldenFolder;
using testing_support::ReadGoldenFolder;
using testing_support::ReadState;
using testing_support::ToyOptions;
using testing_support::ToyState;
using testing_support::TrainerTeam;

// The model of the golden folders, in two units.
ModelSpec Net() {
  ModelSpec model;
  model.units.resize(2);
  model.units[0].name = "first";
  model.units[0].parameters = {{"0.weight", {5, 3}, DType::kFp32}, {"0.bias", {5}, DType::kFp32}};
  model.units[1].name = "second";
  model.units[1].parameters = {{"2.weight", {1, 5}, DType::kFp32}, {"2.bias", {1}, DType::kFp32}};
  return model;
}

class LoadDcpOptimizerTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 32;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }

  SessionOptions OptionsOf(int world_size, OptimizerKind optimizer = OptimizerKind::kAdamW) {
    SessionOptions options = ToyOptions(*cluster_, absl::StrCat("job", ++num_jobs_), world_size);
    options.model = Net();
    options.config.optimizer = optimizer;
    options.config.groups = {ParamGroup()};
    if (optimizer == OptimizerKind::kSgd) options.config.groups[0].momentum = 0.5;
    return options;
  }

  // A job whose parameters and moments are none of the folder's.
  absl::StatusOr<TrainerTeam> OpenTrained(const SessionOptions& options) {
    ASSIGN_OR_RETURN(TrainerTeam team, TrainerTeam::Open(options));
    RETURN_IF_ERROR(team.TrainTo(2));
    return team;
  }

  std::unique_ptr<LocalCluster> cluster_;
  int num_jobs_ = 0;
};

// With the biases in a group of their own, as the folder "adamw" has them.
void SplitGroups(SessionOptions* options) {
  ParamGroup& biases = options->config.groups.emplace_back();
  biases.parameter_names = {"0.bias", "2.bias"};
}

std::vector<float> Floats(const GoldenFolder& golden, const std::string& name) {
  const std::vector<double>& values = golden.tensors.at(name).values;
  return {values.begin(), values.end()};
}

void ExpectMoments(const GoldenFolder& golden, const ToyState& state, StateArray array,
                   const std::string& moment) {
  const ModelSpec net = Net();
  for (int unit = 0; unit < 2; ++unit) {
    for (int p = 0; p < 2; ++p) {
      const std::string name =
          absl::StrCat("optim.state.", net.units[unit].parameters[p].name, ".", moment);
      SCOPED_TRACE(name);
      const std::vector<float>& loaded = state.moments.at({array, unit, p});
      if (golden.tensors.count(name) > 0) {
        EXPECT_EQ(loaded, Floats(golden, name));
      } else {
        EXPECT_THAT(loaded, Each(0.0f));
      }
    }
  }
}

TEST_F(LoadDcpOptimizerTest, MomentsStepsAndNumbersAreTheFoldersInAnyWorldToTheBit) {
  const GoldenFolder golden = ReadGoldenFolder("adamw");
  const std::string folder = golden.WriteOut();
  for (const int world_size : {1, 2, 3, 8}) {
    SCOPED_TRACE(world_size);
    SessionOptions options = OptionsOf(world_size);
    SplitGroups(&options);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTrained(options));
    EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(const ToyState before, ReadState(session));
      ASSIGN_OR_RETURN(const std::vector<HyperParameters> groups,
                       LoadOptimizerState(session, folder));
      ASSIGN_OR_RETURN(const ToyState state, ReadState(session));
      EXPECT_EQ(state.parameters, before.parameters);
      EXPECT_EQ(state.step, 2) << "it stays";
      EXPECT_THAT(state.update_counts, ElementsAre(3, 4, 5, 6));
      ExpectMoments(golden, state, StateArray::kFirstMoment, "exp_avg");
      ExpectMoments(golden, state, StateArray::kSecondMoment, "exp_avg_sq");
      EXPECT_EQ(groups.size(), 2);
      EXPECT_EQ(groups[0].learning_rate, 0.25);
      EXPECT_EQ(groups[1].learning_rate, 0.5);
      for (const HyperParameters& numbers : groups) {
        EXPECT_EQ(numbers.beta1, 0.5);
        EXPECT_EQ(numbers.beta2, 0.75);
        EXPECT_EQ(numbers.epsilon, 0.125);
      }
      EXPECT_EQ(groups[0].weight_decay, 0.0625);
      EXPECT_EQ(groups[1].weight_decay, 0.0);
      return absl::OkStatus();
    }));
  }
}

TEST_F(LoadDcpOptimizerTest, ModelOfTheSameFolderIsLoadedWithoutItsPrefix) {
  const GoldenFolder golden = ReadGoldenFolder("adamw");
  const std::string folder = golden.WriteOut();
  LoadOptions model;
  model.names.renames = {{"model.", ""}};
  model.names.exclude = {"optim.*"};
  SessionOptions options = OptionsOf(2);
  SplitGroups(&options);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(LoadModel(session, folder, model).status());
    RETURN_IF_ERROR(LoadOptimizerState(session, folder).status());
    ASSIGN_OR_RETURN(const ToyState state, ReadState(session));
    std::vector<float> expected;
    for (const char* name : {"0.weight", "0.bias", "2.weight", "2.bias"}) {
      const std::vector<float> values = Floats(golden, absl::StrCat("model.", name));
      expected.insert(expected.end(), values.begin(), values.end());
    }
    EXPECT_EQ(state.parameters, expected);
    ExpectMoments(golden, state, StateArray::kSecondMoment, "exp_avg_sq");
    return absl::OkStatus();
  }));
}

// As torch.optim numbers them: the groups' parameters, one group after the other.
TEST_F(LoadDcpOptimizerTest, ParametersByIdAreThoseOfTheGroupsInTheirOrder) {
  const GoldenFolder golden = ReadGoldenFolder("adamw");
  GoldenFolder by_id = golden;
  testing_support::PutIds({{"0.weight", 0}, {"2.weight", 1}, {"0.bias", 2}, {"2.bias", 3}}, &by_id);
  const std::string folder = by_id.WriteOut();
  SessionOptions options = OptionsOf(3);
  SplitGroups(&options);
  LoadOptimizerOptions load;
  load.names_of_ids = {{"0.weight", "2.weight"}, {"0.bias", "2.bias"}};
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTrained(options));
  EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<HyperParameters> groups,
                     LoadOptimizerState(session, folder, load));
    ASSIGN_OR_RETURN(const ToyState state, ReadState(session));
    EXPECT_THAT(state.update_counts, ElementsAre(3, 4, 5, 6));
    ExpectMoments(golden, state, StateArray::kFirstMoment, "exp_avg");
    ExpectMoments(golden, state, StateArray::kSecondMoment, "exp_avg_sq");
    EXPECT_EQ(groups[0].learning_rate, 0.25);
    EXPECT_EQ(groups[1].learning_rate, 0.5);
    return absl::OkStatus();
  }));
}

// Which is which cannot be seen where shapes are alike, and units have another order than the
// model's parameters(), so nothing is guessed: also where all would fit.
TEST_F(LoadDcpOptimizerTest, IdsAreRefusedWithoutNamesAndWithThoseOfOtherGroupsOrTwice) {
  GoldenFolder by_id = ReadGoldenFolder("adamw");
  testing_support::PutIds({{"0.weight", 0}, {"2.weight", 1}, {"0.bias", 2}, {"2.bias", 3}}, &by_id);
  const std::string folder = by_id.WriteOut();
  SessionOptions options = OptionsOf(2);
  SplitGroups(&options);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTrained(options));
  const auto expect = [&](const std::vector<std::vector<std::string>>& names, absl::StatusCode code,
                          const std::string& text) {
    LoadOptimizerOptions load;
    load.names_of_ids = names;
    EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(const ToyState before, ReadState(session));
      EXPECT_THAT(LoadOptimizerState(session, folder, load), StatusIs(code, HasSubstr(text)));
      ASSIGN_OR_RETURN(const ToyState after, ReadState(session));
      EXPECT_EQ(after, before);
      return absl::OkStatus();
    }));
  };
  using Code = absl::StatusCode;
  expect({}, Code::kFailedPrecondition, "in param groups of 2, 2 parameters, and does not say");
  expect({{"0.weight", "2.weight", "0.bias"}, {"2.bias"}}, Code::kFailedPrecondition,
         "in param groups of 2, 2 parameters, and there are names for groups of 3, 1");
  expect({{"0.weight", "2.weight"}, {"0.bias"}}, Code::kFailedPrecondition, "for groups of 2, 1");
  expect({{"0.weight", "2.weight"}, {"0.bias", "0.bias"}}, Code::kInvalidArgument,
         "'0.bias' is given for two ids");
  expect({{"2.weight", "0.weight"}, {"0.bias", "2.bias"}}, Code::kInvalidArgument,
         "of shape [1, 5], '0.weight' has [5, 3]");
}

// As those of a ParameterList of the root.
TEST_F(LoadDcpOptimizerTest, NumbersThatAreNamesByRenamesAreNoIds) {
  const GoldenFolder golden = ReadGoldenFolder("adamw");
  GoldenFolder numbered = golden;
  testing_support::PutIds({{"0.weight", 3}, {"2.weight", 2}, {"0.bias", 1}, {"2.bias", 0}},
                          &numbered);
  const std::string folder = numbered.WriteOut();
  LoadOptimizerOptions load;
  load.renames = {{"", "list."}};
  SessionOptions options = OptionsOf(2);
  options.model.units[0].parameters[0].name = "list.3";
  options.model.units[0].parameters[1].name = "list.1";
  options.model.units[1].parameters[0].name = "list.2";
  options.model.units[1].parameters[1].name = "list.0";
  options.config.groups.emplace_back().parameter_names = {"list.1", "list.0"};
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTrained(options));
  EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(LoadOptimizerState(session, folder, load).status());
    ASSIGN_OR_RETURN(const ToyState state, ReadState(session));
    EXPECT_THAT(state.update_counts, ElementsAre(3, 4, 5, 6));
    ExpectMoments(golden, state, StateArray::kFirstMoment, "exp_avg");
    return absl::OkStatus();
  }));
}

TEST_F(LoadDcpOptimizerTest, FlattenedFolderOfOneProcessIsLoadedTheSameWay) {
  const GoldenFolder golden = ReadGoldenFolder("adamw_flattened");
  const std::string folder = golden.WriteOut();
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTrained(OptionsOf(2)));
  EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<HyperParameters> groups,
                     LoadOptimizerState(session, folder));
    ASSIGN_OR_RETURN(const ToyState state, ReadState(session));
    EXPECT_THAT(state.update_counts, ElementsAre(3, 4, 5, 6));
    ExpectMoments(golden, state, StateArray::kFirstMoment, "exp_avg");
    EXPECT_EQ(groups[0].weight_decay, 0.5);
    EXPECT_EQ(groups[0].beta2, 0.999);
    return absl::OkStatus();
  }));
}

TEST_F(LoadDcpOptimizerTest, MomentumThatIsNotThereYetIsOneOfZeroes) {
  const GoldenFolder golden = ReadGoldenFolder("sgd");
  ASSERT_EQ(golden.tensors.count("optim.state.2.bias.momentum_buffer"), 0);
  const std::string folder = golden.WriteOut();
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTrained(OptionsOf(2, OptimizerKind::kSgd)));
  EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(LoadOptimizerState(session, folder).status());
    ASSIGN_OR_RETURN(const ToyState state, ReadState(session));
    ExpectMoments(golden, state, StateArray::kFirstMoment, "momentum_buffer");
    return absl::OkStatus();
  }));
}

// PyTorch's SGD counts no updates, and its momentum is none that a first update overwrites.
TEST_F(LoadDcpOptimizerTest, MomentumOfSgdIsGoneOnWith) {
  const GoldenFolder golden = ReadGoldenFolder("sgd");
  const std::string folder = golden.WriteOut();
  ToyState first;  // Of a job whose momentum is its first gradient.
  ASSERT_OK_AND_ASSIGN(TrainerTeam fresh, TrainerTeam::Open(OptionsOf(2, OptimizerKind::kSgd)));
  ASSERT_OK(fresh.TrainTo(1));
  ASSERT_OK(fresh.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const ToyState state, ReadState(session));
    if (session->rank() == 0) first = state;
    return absl::OkStatus();
  }));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(OptionsOf(2, OptimizerKind::kSgd)));
  ASSERT_OK(team.TrainTo(0));  // It has its initial values.
  ASSERT_OK(team.RunAll(
      [&](Session* session) { return LoadOptimizerState(session, "file://" + folder).status(); }));
  ASSERT_OK(team.TrainTo(1));
  EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const ToyState state, ReadState(session));
    EXPECT_THAT(state.update_counts, ElementsAre(2, 2, 2, 1));
    for (int unit = 0; unit < 2; ++unit) {
      for (int p = 0; p < 2; ++p) {
        const std::string name = Net().units[unit].parameters[p].name;
        SCOPED_TRACE(name);
        const std::string stored = absl::StrCat("optim.state.", name, ".momentum_buffer");
        const std::vector<float> gradient = first.moments.at({StateArray::kFirstMoment, unit, p});
        const std::vector<float>& found = state.moments.at({StateArray::kFirstMoment, unit, p});
        EXPECT_EQ(found.size(), gradient.size());
        for (size_t i = 0; i < found.size(); ++i) {
          const float before = golden.tensors.count(stored) > 0 ? Floats(golden, stored)[i] : 0;
          EXPECT_FLOAT_EQ(found[i], 0.5f * before + gradient[i]);
        }
      }
    }
    return absl::OkStatus();
  }));
}

TEST_F(LoadDcpOptimizerTest, StateIsFoundUnderAnyNameOfTiedWeightsAndNoneIsOfWhatIsFrozen) {
  const GoldenFolder golden = ReadGoldenFolder("adamw");
  const std::string folder = golden.WriteOut();
  SessionOptions options = OptionsOf(2);
  SplitGroups(&options);
  options.model.units[0].parameters[0].name = "tied";
  options.model.units[0].parameters.push_back({"0.weight", {5, 3}, DType::kFp32, true, "tied"});
  options.model.units[1].parameters[0].requires_grad = false;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.TrainTo(1));
  EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(LoadOptimizerState(session, folder).status());
    ASSIGN_OR_RETURN(const ToyState state, ReadState(session));
    EXPECT_THAT(state.update_counts, ElementsAre(3, 4, 0, 6));
    EXPECT_EQ(state.moments.at({StateArray::kFirstMoment, 0, 0}),
              Floats(golden, "optim.state.0.weight.exp_avg"));
    EXPECT_THAT(state.moments.at({StateArray::kFirstMoment, 1, 0}), Each(0.0f));
    return absl::OkStatus();
  }));
}

struct Refusal {
  const char* what;
  std::function<void(SessionOptions*, LoadOptimizerOptions*)> change;
  const char* folder;
  absl::StatusCode code;
  const char* text;
};

const std::vector<Refusal>& Refusals() {
  using Code = absl::StatusCode;
  static const auto* refusals = new std::vector<Refusal>{
      {"another prefix", [](auto*, auto* load) { load->prefix = "opt."; }, "adamw", Code::kNotFound,
       "'opt.'"},
      {"a parameter without state",
       [](auto* job, auto*) {
         job->model.units[1].parameters.push_back({"new", {2}, DType::kFp32});
       },
       "adamw", Code::kNotFound, "'new': the folder has none of it"},
      {"a state without parameter",
       [](auto* job, auto*) { job->model.units[1].parameters.pop_back(); }, "adamw",
       Code::kNotFound, "'2.bias': no parameter"},
      {"another shape",
       [](auto* job, auto*) {
         job->model.units[0].parameters[0].shape = {3, 5};
       },
       "adamw", Code::kInvalidArgument, "'optim.state.0.weight.exp_avg': of shape [5, 3]"},
      {"Adam's of SGD's", [](auto*, auto*) {}, "sgd", Code::kFailedPrecondition,
       "it has no 'exp_avg'"},
      {"SGD's of Adam's", [](auto* job, auto*) { job->config.optimizer = OptimizerKind::kSgd; },
       "adamw", Code::kFailedPrecondition, "the job's optimizer has no 'exp_avg'"},
      {"Adam's of AdamW's", [](auto* job, auto*) { job->config.optimizer = OptimizerKind::kAdam; },
       "adamw_flattened", Code::kFailedPrecondition, "weight decay is decoupled"},
      {"numbers that differ within a group", [](auto*, auto*) {}, "adamw",
       Code::kFailedPrecondition, "not those of '0.weight'"},
      {"two of one name",
       [](auto*, auto* load) {
         load->renames = {{"0.bias", "2.bias"}};
       },
       "adamw", Code::kInvalidArgument, "renamed as another one"},
  };
  return *refusals;
}

TEST_F(LoadDcpOptimizerTest, WhatDoesNotFitIsNamedOnEveryRankAndChangesNothing) {
  for (const Refusal& refusal : Refusals()) {
    SCOPED_TRACE(refusal.what);
    const std::string folder = ReadGoldenFolder(refusal.folder).WriteOut();
    SessionOptions options = OptionsOf(2);
    LoadOptimizerOptions load;
    refusal.change(&options, &load);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTrained(options));
    EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(const ToyState before, ReadState(session));
      EXPECT_THAT(LoadOptimizerState(session, folder, load),
                  StatusIs(refusal.code, HasSubstr(refusal.text)));
      ASSIGN_OR_RETURN(const ToyState after, ReadState(session));
      EXPECT_EQ(after, before);
      return absl::OkStatus();
    }));
    EXPECT_OK(team.TrainTo(3)) << "it goes on";
  }
}

TEST_F(LoadDcpOptimizerTest, WhatIsMissingIsFreshWhereThatIsAllowed) {
  const GoldenFolder golden = ReadGoldenFolder("adamw_flattened");
  const std::string folder = golden.WriteOut();
  SessionOptions options = OptionsOf(2);
  options.model.units[1].parameters[1].name = "new";
  LoadOptimizerOptions load;
  load.strict = false;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTrained(options));
  EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(LoadOptimizerState(session, folder, load).status());
    ASSIGN_OR_RETURN(const ToyState state, ReadState(session));
    EXPECT_THAT(state.update_counts, ElementsAre(3, 4, 5, 0));
    EXPECT_THAT(state.moments.at({StateArray::kFirstMoment, 1, 1}), Each(0.0f));
    EXPECT_EQ(state.moments.at({StateArray::kFirstMoment, 1, 0}),
              Floats(golden, "optim.state.2.weight.exp_avg"));
    return absl::OkStatus();
  }));
}

TEST_F(LoadDcpOptimizerTest, RanksThatSeeDifferentFoldersAreToldSo) {
  const std::string folders[] = {ReadGoldenFolder("adamw_flattened").WriteOut(),
                                 ReadGoldenFolder("adamw_flattened").WriteOut()};
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, (folders[1] + "/__0_0.distcp").c_str(), times, 0), 0);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTrained(OptionsOf(2)));
  for (const absl::Status& status : team.Run([&](Session* session) {
         return LoadOptimizerState(session, folders[session->rank()]).status();
       })) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ranks 0 and 1")));
  }
}

// Found out in the middle of it, when one rank has staged what the other could not read.
TEST_F(LoadDcpOptimizerTest, ItemThatCannotBeReadIsEveryRanksErrorAndChangesNothing) {
  GoldenFolder golden = ReadGoldenFolder("adamw_flattened");
  // The pickles of all moments, but not of steps, name what no tensor needs. Steps are read first.
  std::string& file = golden.files["__0_0.distcp"];
  const std::string size("K\x05K\x03\x86", 5), other("K\x05K\x04\x86", 5);
  ASSERT_TRUE(absl::StrContains(file, size));
  for (size_t at = file.find(size); at != std::string::npos; at = file.find(size))
    file.replace(at, size.size(), other);
  const std::string folder = golden.WriteOut();
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTrained(OptionsOf(2)));
  std::vector<ToyState> before(2), after(2);
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(before[session->rank()], ReadState(session));
    return absl::OkStatus();
  }));
  for (const absl::Status& status :
       team.Run([&](Session* session) { return LoadOptimizerState(session, folder).status(); })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("'optim.state.0.weight.exp_avg")));
  }
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(after[session->rank()], ReadState(session));
    return absl::OkStatus();
  }));
  EXPECT_EQ(after, before);
  EXPECT_OK(team.TrainTo(3)) << "it goes on";
}

// A trainer's buffers may be of whole numbers, but no moment is.
TEST_F(LoadDcpOptimizerTest, MomentOfWholeNumbersIsRefusedByNameOnEveryRank) {
  GoldenFolder golden = ReadGoldenFolder("sgd");
  // As long as it was: the protocol's opcode follows in the place of the rest.
  const int replaced = absl::StrReplaceAll({{"\x8c\x07"
                                             "float32",
                                             "\x8c\x05int32\x80\x02"}},
                                           &golden.files[".metadata"]);
  ASSERT_GT(replaced, 0);
  const std::string folder = golden.WriteOut();
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTrained(OptionsOf(2, OptimizerKind::kSgd)));
  EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
    EXPECT_THAT(LoadOptimizerState(session, folder),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("momentum_buffer': of no floating-point type")));
    return absl::OkStatus();
  }));
  EXPECT_OK(team.TrainTo(3)) << "it goes on";
}

}  // namespace
}  // namespace tessera
