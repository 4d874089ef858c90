// The model's state as a dictionary of each type, and back: SD-1 to SD-11, SD-15, SD-17, SD-20.
#include <algorithm>
#include <set>

#include "tests/conformance/fsdp/state_dict_fixture.h"

namespace tessera::conformance {
namespace {

using testing::HasSubstr;

std::shared_ptr<Nested> MakeNested() { return std::make_shared<Nested>(); }
std::shared_ptr<Transformer> MakeTransformer() { return std::make_shared<Transformer>(); }

// SD-9, SD-11, DSD-1.
TEST_F(StateDictTest, KeysAreThoseOfTheModuleUnattachedOrOneForEachUnit) {
  const std::vector<std::string> plain = KeysOf(*MakeNested());
  OnRanks<Nested>({MakeNested, 2, NestedUnits()}, [&](Trainer<Nested>& rank) {
    for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded}) {
      ASSERT_OK(rank.states->types().Set(*rank.model, {type}));
      ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
      EXPECT_EQ(KeysOf(dict), plain);
      ASSERT_OK_AND_ASSIGN(const StateDict inner, rank.states->Get(*rank.model->inner));
      EXPECT_EQ(KeysOf(inner), KeysOf(*MakeNested()->inner));
    }
    ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kLocal}));
    ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
    EXPECT_EQ(KeysOf(dict), std::vector<std::string>({"_flat_param", "1.0._flat_param",
                                                      "1._flat_param", "2._flat_param"}));
    ASSERT_OK_AND_ASSIGN(const StateDict inner, rank.states->Get(*rank.model->inner));
    EXPECT_EQ(KeysOf(inner), std::vector<std::string>({"0._flat_param", "_flat_param"}));
  });
}

struct Case {
  StateDictType type;
  Strategy strategy;
  int world_size;
};

class EveryTypeTest : public StateDictTest, public testing::WithParamInterface<Case> {
 protected:
  // Training, saving, zeroing and loading, which brings everything back to the bit.
  template <typename M>
  void RoundTrip(const std::function<std::shared_ptr<M>()>& make, const WrapPolicy& policy) {
    Job<M> job = {make, GetParam().world_size, policy};
    job.edit = [](SessionOptions* options) { options->config.strategy = GetParam().strategy; };
    OnRanks<M>(job, [&](Trainer<M>& rank) {
      ASSERT_OK(rank.states->types().Set(*rank.model, {GetParam().type}));
      const Tensors before = Whole(rank);
      Train(rank, 2);
      const Tensors trained = Whole(rank);
      EXPECT_FALSE(torch::equal(before.begin()->second, trained.begin()->second));
      ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
      Fill(rank, 0);
      EXPECT_EQ(Whole(rank).begin()->second.abs().max().template item<float>(), 0);
      ASSERT_OK_AND_ASSIGN(const LoadStateReport report, rank.states->Load(*rank.model, dict));
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
      ExpectEqual(Whole(rank), trained);
      Train(rank, 1);  // Continues.
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Types, EveryTypeTest,
                         testing::Values(Case{StateDictType::kFull, Strategy::kFullShard, 2},
                                         Case{StateDictType::kFull, Strategy::kNoShard, 3},
                                         Case{StateDictType::kFull, Strategy::kShardGradOp, 2},
                                         Case{StateDictType::kSharded, Strategy::kFullShard, 2},
                                         Case{StateDictType::kSharded, Strategy::kFullShard, 3},
                                         Case{StateDictType::kSharded, Strategy::kShardGradOp, 5},
                                         Case{StateDictType::kSharded, Strategy::kNoShard, 2},
                                         Case{StateDictType::kLocal, Strategy::kFullShard, 2},
                                         Case{StateDictType::kLocal, Strategy::kShardGradOp, 3}),
                         [](const testing::TestParamInfo<Case>& info) {
                           return ShortName(info.param.type) +
                                  std::string(Name(info.param.strategy)) +
                                  std::to_string(info.param.world_size);
                         });

// SD-5, SD-8.
TEST_P(EveryTypeTest, SavedStateBringsATrainedModelBackToTheBit) {
  RoundTrip<Nested>(MakeNested, NestedUnits());
}

// SD-3, SD-17.
TEST_P(EveryTypeTest, SoItDoesWithTiedWeights) {
  RoundTrip<Transformer>(MakeTransformer, AlwaysWrap());
}

// SD-1, SD-2: a segment that is computed again is a call, so it has no name of its own.
TEST_P(EveryTypeTest, SoItDoesWithSegmentsThatAreComputedAgain) {
  RoundTrip<MlpStack>(
      [] {
        auto model = std::make_shared<MlpStack>(5);
        model->checkpoints = true;
        return model;
      },
      AlwaysWrap());
}

// SD-10, F2SD-5, DSD-1.
TEST_F(StateDictTest, WholeTensorsOfRankZeroAreThoseOfThePlainModel) {
  OnRanks<Nested>({MakeNested, 3, NestedUnits()}, [&](Trainer<Nested>& rank) {
    Train(rank, 2);
    const Tensors trained = Whole(rank);
    ASSERT_OK(rank.states->types().Set(*rank.model,
                                       {StateDictType::kFull, FullStateDictConfig{true, true}}));
    ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
    EXPECT_EQ(dict.is_empty(), rank.rank != 0);
    if (rank.rank != 0) return;
    auto plain = MakeNested();
    const torch::NoGradGuard no_grad;
    for (auto& item : plain->named_parameters()) {
      EXPECT_TRUE(dict[item.key()].tensor.device().is_cpu());
      item.value().copy_(dict[item.key()].tensor);
    }
    ExpectEqual(CopyOf(*plain), trained);
  });
}

TEST_F(StateDictTest, RowsOfAllRanksAreTheParameterAndSoAreFlatPartsTheUnit) {
  constexpr int kWorld = 5;  // More than some parameters have rows.
  std::vector<StateDict> rows(kWorld), flat(kWorld);
  Tensors whole;
  OnRanks<Nested>({MakeNested, kWorld, NestedUnits()}, [&](Trainer<Nested>& rank) {
    const Tensors values = Whole(rank);
    if (rank.rank == 0) whole = values;
    ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kSharded}));
    ASSERT_OK_AND_ASSIGN(rows[rank.rank], rank.states->Get(*rank.model));
    ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kLocal}));
    ASSERT_OK_AND_ASSIGN(flat[rank.rank], rank.states->Get(*rank.model));
  });
  bool some_are_empty = false;
  for (const auto& [name, tensor] : whole) {
    std::vector<torch::Tensor> parts;
    int64_t begin = 0;
    for (const StateDict& dict : rows) {
      EXPECT_EQ(dict[name].begin, begin) << name;
      begin += dict[name].tensor.size(0);
      some_are_empty |= dict[name].tensor.size(0) == 0;
      parts.push_back(dict[name].tensor);
    }
    EXPECT_TRUE(torch::equal(torch::cat(parts), tensor)) << name;
  }
  EXPECT_TRUE(some_are_empty);
  std::vector<torch::Tensor> of_unit, expected;
  for (const StateDict& dict : flat) of_unit.push_back(dict["2._flat_param"].tensor);
  for (const char* name : {"2.weight", "2.bias"}) expected.push_back(whole.at(name).view(-1));
  EXPECT_TRUE(torch::equal(torch::cat(of_unit), torch::cat(expected)));
}

// SD-7: shards are in full precision whatever the compute dtype.
TEST_F(StateDictTest, AfterForwardInLowPrecisionEveryTypeIsInFullPrecision) {
  Job<Nested> job = {MakeNested, 2, NestedUnits()};
  job.attach.precision.param_dtype = DType::kBf16;
  OnRanks<Nested>(job, [&](Trainer<Nested>& rank) {
    Train(rank, 2);
    const Tensors trained = Whole(rank);
    for (const StateDictType type :
         {StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal}) {
      ASSERT_OK(rank.states->types().Set(*rank.model, {type}));
      ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
      for (const auto& item : dict)
        EXPECT_EQ(item.value().tensor.scalar_type(), torch::kFloat32) << item.key();
      if (type != StateDictType::kFull) continue;
      for (const auto& [name, tensor] : trained)
        EXPECT_TRUE(torch::equal(dict[name].tensor, tensor)) << name;
      EXPECT_FALSE(torch::equal(trained.at("2.weight"),
                                trained.at("2.weight").to(torch::kBFloat16).to(torch::kFloat32)));
    }
  });
}

TEST_F(StateDictTest, ParametersOfFp64ComeAndGoInFp64) {
  Job<Nested> job = {MakeNested, 2, NestedUnits()};
  job.make = [] {
    auto model = MakeNested();
    model->to(torch::kFloat64);
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model->parameters()) parameter.add_(1e-12);
    return model;
  };
  OnRanks<Nested>(job, [&](Trainer<Nested>& rank) {
    ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
    for (const auto& item : dict)
      EXPECT_EQ(item.value().tensor.scalar_type(), torch::kFloat64) << item.key();
    Fill(rank, 0);
    ASSERT_OK(rank.states->Load(*rank.model, dict));
    ASSERT_OK_AND_ASSIGN(const StateDict again, rank.states->Get(*rank.model));
    for (const auto& item : dict)
      EXPECT_TRUE(torch::equal(again[item.key()].tensor, item.value().tensor)) << item.key();
  });
}

// SD-6, SD-13 (buffers).
TEST_F(StateDictTest, BuffersAreInTheirOriginalDTypeAndComeBack) {
  Job<Transformer> job = {MakeTransformer, 2};
  job.attach.precision.param_dtype = DType::kBf16;
  job.attach.precision.buffer_dtype = DType::kBf16;
  OnRanks<Transformer>(job, [&](Trainer<Transformer>& rank) {
    Train(rank, 1);
    EXPECT_EQ(rank.model->vocab_bias.scalar_type(), torch::kBFloat16);
    ASSERT_OK_AND_ASSIGN(StateDict dict, rank.states->Get(*rank.model));
    EXPECT_EQ(dict["vocab_bias"].tensor.scalar_type(), torch::kFloat32);
    EXPECT_EQ(dict["calls"].tensor.scalar_type(), torch::kInt64);
    EXPECT_EQ(rank.model->vocab_bias.scalar_type(), torch::kBFloat16);
    dict["vocab_bias"].tensor = torch::full_like(dict["vocab_bias"].tensor, 0.5);
    dict["calls"].tensor = torch::full_like(dict["calls"].tensor, 41);
    ASSERT_OK(rank.states->Load(*rank.model, dict));
    EXPECT_EQ(rank.model->vocab_bias.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(rank.model->vocab_bias.to(torch::kFloat32).min().item<float>(), 0.5f);
    EXPECT_EQ(rank.model->calls.max().item<int64_t>(), 41);
  });
}

// SD-17.
TEST_F(StateDictTest, EveryNameOfATiedWeightIsThereWithTheSameValues) {
  OnRanks<Transformer>({MakeTransformer, 3}, [&](Trainer<Transformer>& rank) {
    Train(rank, 1);
    for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded}) {
      ASSERT_OK(rank.states->types().Set(*rank.model, {type}));
      ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
      EXPECT_EQ(KeysOf(dict), KeysOf(*MakeTransformer()));
      EXPECT_TRUE(torch::equal(dict["output_weight"].tensor, dict["embedding.weight"].tensor));
    }
  });
}

// SD-13: what is ignored is the module's own memory, neither copied nor cast.
TEST_F(StateDictTest, IgnoredStatesAreTheModulesOwnMemoryUnderTheirNames) {
  const auto make = [] { return std::make_shared<Experts>(); };
  const SessionOptions options = Options(2);
  ForEachRank(2, [&](int r) {
    auto model = make();
    AttachOptions attach;
    attach.ignored.modules = {model->expert.ptr()};
    attach.precision.param_dtype = DType::kBf16;
    SessionOptions of_rank = options;
    of_rank.rank = r;
    ASSERT_OK_AND_ASSIGN(const auto sharded,
                         ShardedModel::Attach(model, of_rank, AlwaysWrap(), attach));
    StateDicts states(sharded.get());
    for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded}) {
      ASSERT_OK(states.types().Set(*model, {type}));
      ASSERT_OK_AND_ASSIGN(StateDict dict, states.Get(*model));
      EXPECT_EQ(KeysOf(dict), KeysOf(*make()));
      EXPECT_EQ(dict["expert.weight"].tensor.data_ptr(), model->expert->weight.data_ptr());
      dict["expert.weight"].tensor = torch::full_like(dict["expert.weight"].tensor, r + 1);
      ASSERT_OK(states.Load(*model, dict));
      EXPECT_EQ(model->expert->weight.max().item<float>(), r + 1);  // Each rank's own.
    }
  });
}

// SD-15.
TEST_F(StateDictTest, RankWithoutAnElementHasAnEmptyPartAndTakesItBack) {
  struct ScalarImpl : torch::nn::Module {
    ScalarImpl() { weight = register_parameter("weight", torch::full({1}, 3.0)); }
    torch::Tensor forward(torch::Tensor x) { return x * weight; }
    torch::Tensor weight;
  };
  using Scalar = Sharded<ScalarImpl>;
  OnRanks<Scalar>({[] { return std::make_shared<Scalar>(); }, 2}, [&](Trainer<Scalar>& rank) {
    ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kLocal}));
    ASSERT_OK_AND_ASSIGN(StateDict dict, rank.states->Get(*rank.model));
    StateEntry& entry = dict["_flat_param"];
    EXPECT_EQ(entry.tensor.numel(), rank.rank == 0 ? 1 : 0);
    EXPECT_EQ(entry.begin, rank.rank);
    EXPECT_EQ(entry.shape, std::vector<int64_t>({1}));
    entry.tensor = entry.tensor + 4;
    ASSERT_OK(rank.states->Load(*rank.model, dict));
    EXPECT_EQ(Whole(rank).at("weight").item<float>(), 7);
  });
}

// SD-20.
TEST_F(StateDictTest, OneRankAloneShardsNothing) {
  OnRanks<Nested>({MakeNested, 1, NestedUnits()}, [&](Trainer<Nested>& rank) {
    ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kSharded}));
    ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
    for (const auto& item : dict) EXPECT_EQ(item.value().kind, StateEntry::Kind::kWhole);
    const Tensors before = Whole(rank);
    Fill(rank, 0);
    ASSERT_OK(rank.states->Load(*rank.model, dict));
    ExpectEqual(Whole(rank), before);
    ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kLocal}));
    EXPECT_THAT(rank.states->Get(*rank.model),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("whole on every rank")));
  });
}

// F2SD-2.
TEST_F(StateDictTest, WhileUnitsAreUnshardedItIsTheSame) {
  Job<Nested> job = {MakeNested, 2, NestedUnits()};
  job.edit = [](SessionOptions* options) { options->config.strategy = Strategy::kShardGradOp; };
  OnRanks<Nested>(job, [&](Trainer<Nested>& rank) {
    ASSERT_OK_AND_ASSIGN(const StateDict before, rank.states->Get(*rank.model));
    const torch::Tensor loss = LossOf(*rank.model, 1, rank.rank);
    EXPECT_TRUE(rank.sharded->session().unsharded(1));
    ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
    for (const auto& item : before)
      EXPECT_TRUE(torch::equal(dict[item.key()].tensor, item.value().tensor)) << item.key();
  });
}

// Runs something in its forward and in its backward.
struct CallingImpl : torch::nn::Module {
  CallingImpl() { weight = register_parameter("weight", torch::ones({3})); }
  torch::Tensor forward(torch::Tensor x) {
    if (during) during("forward");
    torch::Tensor y = x * weight;
    if (during) y.register_hook([this](const torch::Tensor&) { during("backward"); });
    return y + 1;  // Whose gradient comes first, and opens the unit.
  }
  torch::Tensor weight;
  std::function<void(const char*)> during;
};
using Calling = Sharded<CallingImpl>;

TEST_F(StateDictTest, InForwardInBackwardAndWhileSummonedItIsRefused) {
  OnRanks<Calling>({[] { return std::make_shared<Calling>(); }, 2}, [&](Trainer<Calling>& rank) {
    int times = 0;
    const auto expect_refused = [&](const char* what) {
      ++times;
      EXPECT_THAT(rank.states->Get(*rank.model),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(what)));
      EXPECT_THAT(rank.states->Load(*rank.model, StateDict()),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(what)));
    };
    rank.model->during = expect_refused;
    ASSERT_OK(rank.sharded->RunStep([&] {
      rank.model->forward(torch::ones({3})).sum().backward();
      return rank.sharded->Step();
    }));
    ASSERT_OK(rank.sharded->SummonFullParams({}, [&] {
      expect_refused("summoned");
      return absl::OkStatus();
    }));
    EXPECT_EQ(times, 3);
  });
}

}  // namespace
}  // namespace tessera::conformance
