// What clients read of a job, against the dictionaries that its trainers make: parameters, buffers, the
// optimizer's state and its param groups.
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

namespace tessera {
namespace {

constexpr int64_t kSteps = 3;

// What a rank's trainer says of the job.
struct Dicts {
  StateDict model;
  OptimStateDict optimizer;
};

struct Reading {
  LiveVersion version;
  std::vector<LiveEntry> entries;
  std::map<std::string, std::string> bytes;  // By name.
};

std::string BytesOf(const torch::Tensor& tensor) {
  const torch::Tensor plain = tensor.detach().contiguous();
  return {static_cast<const char*>(plain.data_ptr()), plain.nbytes()};
}

struct Case {
  std::string name;
  LiveNetTest::Job job;
};

class LiveDictsTest : public LiveNetTest, public ::testing::WithParamInterface<Case> {
 protected:
  static LiveQuery Query(bool moments) {
    LiveQuery query;
    query.job_id = "live";
    query.moments = moments;
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
      ASSERT_OK_AND_ASSIGN(dicts.model, states.Get(*rank.net));
      ASSERT_OK_AND_ASSIGN(dicts.optimizer, optimizer.Get());
      // Buffers are the module's memory in a dictionary.
      for (auto& item : dicts.model) item.value().tensor = item.value().tensor.clone();
    });
    return all;
  }

  static void ExpectEntry(const LiveEntry& live, const std::string& bytes,
                          const StateEntry& expected) {
    EXPECT_EQ(live.shape, expected.tensor.sizes().vec()) << live.name;
    EXPECT_EQ(live.dtype, *StoredDTypeOf(expected.tensor.scalar_type())) << live.name;
    EXPECT_EQ(bytes, BytesOf(expected.tensor)) << live.name;
    EXPECT_EQ(expected.kind, StateEntry::Kind::kWhole) << live.name;
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
    for (size_t g = 0; g < dict.groups.size(); ++g) {
      std::vector<std::string> params;
      for (const auto& [name, group] : groups)
        if (group == static_cast<int>(g)) params.push_back(name);
      EXPECT_THAT(params, ::testing::UnorderedElementsAreArray(dict.groups[g].params));
    }
  }
};

TEST_P(LiveDictsTest, WhatIsReadIsWhatTheTrainersDictionariesHaveForModelAndOptimizer) {
  Start(GetParam().job);
  const std::vector<Dicts> all = TrainAndAsk();
  ASSERT_FALSE(HasFailure());
  for (const bool through_coordinator : {false, true}) {
    SCOPED_TRACE(through_coordinator ? "through the coordinator" : "from the workers");
    ASSERT_OK_AND_ASSIGN(const Reading model, Read(Query(/*moments=*/false), through_coordinator));
    ASSERT_OK_AND_ASSIGN(const Reading both, Read(Query(/*moments=*/true), through_coordinator));
    EXPECT_EQ(model.version.trained_step, kSteps);
    for (const Dicts& dicts : all) {
      ExpectModel(model, dicts.model, all[0].model);
      ExpectModel(both, dicts.model, all[0].model);
      ExpectOptimizer(both, dicts.optimizer);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, LiveDictsTest,
    ::testing::Values(Case{"OneRank", {1, 1}}, Case{"TwoRanks", {2, 2}},
                      Case{"ThreeRanksOfTwoWorkers", {3, 2}},
                      Case{"Sgd", {2, 2, Strategy::kFullShard, 0, OptimizerKind::kSgd}},
                      Case{"NoShard", {2, 2, Strategy::kNoShard}},
                      Case{"Hybrid", {4, 2, Strategy::kHybridShard, 2}}),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
