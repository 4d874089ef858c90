// What clients read of a job in each of the three forms, against the dictionaries that its trainers
// make: parameters, buffers, the optimizer's state and its param groups.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/torch/model_buffers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/live_reader.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/optim_state_dicts.h"
#include "tessera/torch/state_dicts.h"
#include "tests/integration/live_net.h"
#include "tests/testing/live_puts.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing_support::CliResult;
using testing_support::RunTessera;

constexpr int64_t kSteps = 3;

// What a rank's trainer says of itself.
struct Dicts {
  std::map<StateDictType, StateDict> model;
  std::map<StateDictType, OptimStateDict> optimizer;
  absl::Status local, local_optimizer;  // Whether LOCAL is possible.
};

struct Reading {
  LiveVersion version;
  std::vector<LiveEntry> entries;
  std::map<std::string, std::string> bytes;  // By name.
};

LiveForm FormOf(StateDictType type) {
  switch (type) {
    case StateDictType::kFull:
      return LiveForm::kFull;
    case StateDictType::kSharded:
      return LiveForm::kSharded;
    case StateDictType::kLocal:
      return LiveForm::kLocal;
  }
  return LiveForm::kFull;
}

std::string BytesOf(const torch::Tensor& tensor) {
  const torch::Tensor plain = tensor.detach().contiguous();
  return {static_cast<const char*>(plain.data_ptr()), plain.nbytes()};
}

struct Case {
  std::string name;
  LiveNetTest::Job job;
};

class LiveFormsTest : public LiveNetTest, public ::testing::WithParamInterface<Case> {
 protected:
  LiveQuery Query(StateDictType type, int rank, bool moments) const {
    LiveQuery query;
    query.job_id = "live";
    query.moments = moments;
    query.part.form = FormOf(type);
    query.part.rank = type == StateDictType::kFull ? 0 : rank;
    return query;
  }

  absl::StatusOr<Reading> Read(const LiveQuery& query, bool through_coordinator) const {
    LiveReaderOptions options;
    options.coordinator_address = coordinator();
    options.through_coordinator = through_coordinator;
    ASSIGN_OR_RETURN(const auto reader, LiveReader::Open(options));
    Reading reading;
    ASSIGN_OR_RETURN(reading.version, reader->Read(query, [&](const LiveEntry& entry) {
      reading.entries.push_back(entry);
      std::string& bytes = reading.bytes[entry.name];
      bytes.assign(entry.size_bytes, '?');
      return absl::MakeSpan(&bytes[0], bytes.size());
    }));
    return reading;
  }

  // Trains, and has each rank say what it has.
  std::vector<Dicts> TrainAndAsk() {
    std::vector<Dicts> all(job().world_size);
    OnEachRank([&](Rank& rank) {
      for (int64_t step = 0; step < kSteps; ++step) ASSERT_OK(Step(&rank));
      StateDicts states(rank.model.get());
      OptimStateDicts optimizer(rank.model.get(), &states.types());
      Dicts& dicts = all[rank.rank];
      for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded}) {
        ASSERT_OK(states.types().Set(*rank.net, {type}));
        ASSERT_OK_AND_ASSIGN(dicts.model[type], states.Get(*rank.net));
        ASSERT_OK_AND_ASSIGN(dicts.optimizer[type], optimizer.Get());
      }
      ASSERT_OK(states.types().Set(*rank.net, {StateDictType::kLocal}));
      auto local = states.Get(*rank.net);
      dicts.local = local.status();
      if (local.ok()) dicts.model[StateDictType::kLocal] = *std::move(local);
      auto local_optimizer = optimizer.Get();
      dicts.local_optimizer = local_optimizer.status();
      if (local_optimizer.ok())
        dicts.optimizer[StateDictType::kLocal] = *std::move(local_optimizer);
      // Buffers are the module's memory in a dictionary.
      for (auto& [type, dict] : dicts.model) {
        for (auto& item : dict) item.value().tensor = item.value().tensor.clone();
      }
    });
    return all;
  }

  static void ExpectEntry(const LiveEntry& live, const std::string& bytes,
                          const StateEntry& expected) {
    EXPECT_EQ(live.shape, expected.tensor.sizes().vec()) << live.name;
    EXPECT_EQ(live.dtype, *StoredDTypeOf(expected.tensor.scalar_type())) << live.name;
    EXPECT_EQ(bytes, BytesOf(expected.tensor)) << live.name;
    ASSERT_EQ(live.is_part(), expected.kind != StateEntry::Kind::kWhole) << live.name;
    if (!live.is_part()) return;
    EXPECT_EQ(live.whole_shape, expected.shape) << live.name;
    EXPECT_EQ(live.begin, expected.begin) << live.name;
  }

  // Of buffers rank 0's.
  static void ExpectModel(const Reading& reading, const StateDict& dict,
                          const StateDict& of_first) {
    std::vector<std::string> names;
    for (const LiveEntry& live : reading.entries) {
      if (live.array != LiveArray::kParameter && live.array != LiveArray::kBuffer) continue;
      std::vector<std::string> of_tensor = live.aliases;
      of_tensor.push_back(live.name);
      for (const std::string& name : of_tensor) {
        names.push_back(name);
        const StateDict& with = live.array == LiveArray::kBuffer ? of_first : dict;
        const StateEntry* expected = with.find(name);
        ASSERT_NE(expected, nullptr) << name;
        ExpectEntry(live, reading.bytes.at(live.name), *expected);
      }
    }
    std::vector<std::string> keys = dict.keys();
    EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(keys));
  }

  // Builds the dictionary of the optimizer from what was read alone.
  static void ExpectOptimizer(const Reading& reading, const OptimStateDict& dict) {
    std::map<std::string, std::map<std::string, const LiveEntry*>> moments;
    std::map<std::string, int> groups;
    for (const LiveEntry& live : reading.entries) {
      if (live.array == LiveArray::kParameter) groups[live.parameter] = live.param_group;
      if (live.array != LiveArray::kFirstMoment && live.array != LiveArray::kSecondMoment) continue;
      const std::string moment = live.name.substr(live.name.rfind('.') + 1);
      if (live.update_count > 0) moments[live.parameter][moment] = &live;
    }
    ASSERT_EQ(moments.size(), dict.state.size());
    for (const auto& item : dict.state) {
      const auto& [key, state] = std::make_pair(item.key(), item.value());
      ASSERT_EQ(moments.count(key), 1u) << key;
      ASSERT_EQ(moments[key].size(), state.moments.size()) << key;
      for (const auto& [moment, entry] : state.moments) {
        ASSERT_EQ(moments[key].count(moment), 1u) << key << ", " << moment;
        const LiveEntry& live = *moments[key][moment];
        EXPECT_EQ(live.update_count, state.step) << live.name;
        ExpectEntry(live, reading.bytes.at(live.name), entry);
      }
    }
    EXPECT_EQ(reading.version.trained_step, dict.last_step);
    ASSERT_EQ(reading.version.groups.size(), dict.groups.size());
    for (size_t g = 0; g < dict.groups.size(); ++g) {
      const HyperParameters &live = reading.version.groups[g], &own = dict.groups[g].numbers;
      EXPECT_EQ(live.learning_rate, own.learning_rate);
      EXPECT_EQ(live.beta1, own.beta1);
      EXPECT_EQ(live.beta2, own.beta2);
      EXPECT_EQ(live.epsilon, own.epsilon);
      EXPECT_EQ(live.weight_decay, own.weight_decay);
      EXPECT_EQ(live.momentum, own.momentum);
    }
    if (groups.count("_flat_param") != 0) return;  // Units are outside groups.
    for (size_t g = 0; g < dict.groups.size(); ++g) {
      std::vector<std::string> params;
      for (const auto& [name, group] : groups)
        if (group == static_cast<int>(g)) params.push_back(name);
      EXPECT_THAT(params, ::testing::UnorderedElementsAreArray(dict.groups[g].params));
    }
  }
};

TEST_P(LiveFormsTest, EachFormIsWhatTheTrainersDictionariesHaveForModelAndOptimizer) {
  Start(GetParam().job);
  const std::vector<Dicts> all = TrainAndAsk();
  ASSERT_FALSE(HasFailure());
  for (const StateDictType type :
       {StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal}) {
    for (int rank = 0; rank < job().world_size; ++rank) {
      SCOPED_TRACE(absl::StrCat(Name(type), " of rank ", rank));
      const bool is_local = type == StateDictType::kLocal;
      const auto model = Read(Query(type, rank, /*moments=*/false), rank % 2 == 1);
      const auto with_moments = Read(Query(type, rank, /*moments=*/true), rank % 2 == 0);
      if (is_local && !all[rank].local.ok()) {
        EXPECT_THAT(model.status(), StatusIs(all[rank].local.code(),
                                             HasSubstr("is only of units that are sharded")));
      } else {
        ASSERT_OK(model);
        ExpectModel(*model, all[rank].model.at(type), all[0].model.at(type));
        EXPECT_EQ(model->version.trained_step, kSteps);
      }
      if (is_local && !all[rank].local_optimizer.ok()) {
        EXPECT_EQ(with_moments.status().code(), all[rank].local_optimizer.code());
      } else {
        ASSERT_OK(with_moments);
        ExpectModel(*with_moments, all[rank].model.at(type), all[0].model.at(type));
        ExpectOptimizer(*with_moments, all[rank].optimizer.at(type));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, LiveFormsTest,
    ::testing::Values(Case{"OneRank", {1, 1}}, Case{"TwoRanks", {2, 2}},
                      Case{"ThreeRanksOfTwoWorkers", {3, 2}},
                      Case{"Sgd", {2, 2, Strategy::kFullShard, 0, OptimizerKind::kSgd}},
                      Case{"NoShard", {2, 2, Strategy::kNoShard}},
                      Case{"Hybrid", {4, 2, Strategy::kHybridShard, 2}}),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

class LiveFormsOfTwoTest : public LiveFormsTest {};

TEST_F(LiveFormsOfTwoTest, FlatStateOfAUnitThatWasUpdatedUnequallyIsRefusedByNameAsTrainersAre) {
  Start({});
  absl::Status own;
  OnEachRank([&](Rank& rank) {
    ASSERT_OK(Step(&rank));
    rank.net->first->uses_bend = false;
    ASSERT_OK(Step(&rank));
    StateDicts states(rank.model.get());
    ASSERT_OK(states.types().Set(*rank.net, {StateDictType::kLocal}));
    const absl::Status status = OptimStateDicts(rank.model.get(), &states.types()).Get().status();
    if (rank.rank == 0) own = status;
  });
  EXPECT_THAT(own, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("first.bend")));
  for (const bool through_coordinator : {false, true}) {
    LiveQuery query = Query(StateDictType::kLocal, 1, /*moments=*/true);
    const auto refused = Read(query, through_coordinator);
    EXPECT_THAT(refused.status(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                           HasSubstr(std::string(own.message()))));
    query.include = {"second.*"};
    EXPECT_OK(Read(query, through_coordinator).status());
    EXPECT_OK(Read(Query(StateDictType::kSharded, 1, /*moments=*/true), through_coordinator));
  }
}

TEST_F(LiveFormsOfTwoTest, CommandWritesARanksPartAndSaysWhatIsWrongWithAQuery) {
  Start({});
  const std::vector<Dicts> all = TrainAndAsk();
  ASSERT_FALSE(HasFailure());
  std::string folder = ::testing::TempDir() + "/live-forms-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/part.safetensors";
  const auto get = [&](std::vector<std::string> flags) {
    std::vector<std::string> args = {"get", "live", "--out", path};
    args.insert(args.end(), flags.begin(), flags.end());
    return RunTessera(coordinator(), args);
  };
  for (const auto& [form, type] : {std::make_pair("sharded", StateDictType::kSharded),
                                   std::make_pair("local", StateDictType::kLocal)}) {
    const CliResult got = get({"--form", form, "--rank", "1", "--no-buffers"});
    ASSERT_EQ(got.exit_code, 0) << got.err;
    const auto values = testing_support::ReadStored(path);
    EXPECT_FALSE(values.empty());
    for (const auto& [name, value] : values)
      EXPECT_EQ(value.second, BytesOf(all[1].model.at(type)[name].tensor)) << form << " " << name;
  }
  EXPECT_THAT(get({"--form", "sharded", "--rank", "2"}).err,
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("rank"), HasSubstr("2")));
  EXPECT_THAT(get({"--form", "sharded", "--rank", "-1"}).err, HasSubstr("rank"));
  EXPECT_THAT(get({"--form", "local"}).err, HasSubstr("--form local: needs --rank"));
  EXPECT_THAT(get({"--rank", "1"}).err, HasSubstr("--rank: needs --form sharded or local"));
  EXPECT_THAT(get({"--form", "flat", "--rank", "0"}).err,
              HasSubstr("must be full, sharded or local"));
  // Names of the form LOCAL are units'.
  const CliResult one = get({"--form", "local", "--rank", "0", "--include", "first.*"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const auto of_one = testing_support::ReadStored(path);
  ASSERT_EQ(of_one.size(), 1u);
  EXPECT_EQ(of_one.begin()->first, "first._flat_param");
  EXPECT_THAT(get({"--form", "local", "--rank", "0", "--include", "table"}).err,
              HasSubstr("no unit's flat part has a name that matches"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tessera
