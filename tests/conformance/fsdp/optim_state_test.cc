// The state of a job's optimizer as a dictionary of each type: OSD-1, OSD-2, OSD-8, OSD-12, OSD-13,
// OSD-15, OSD-18, OSD-19, OSD-22.
#include "tessera/torch/optim_state_dicts.h"
#include "tests/conformance/fsdp/optim_state_fixture.h"

namespace tessera::conformance {
namespace {

using testing::HasSubstr;

class GatheredStateTest : public OptimStateTest,
                          public testing::WithParamInterface<std::pair<OptimizerKind, int>> {};

INSTANTIATE_TEST_SUITE_P(Optimizers, GatheredStateTest,
                         testing::Values(std::pair(OptimizerKind::kAdam, 1),
                                         std::pair(OptimizerKind::kAdamW, 2),
                                         std::pair(OptimizerKind::kSgd, 2)));

// OSD-1: by its own optimizer, on the data of all ranks; param groups too.
TEST_P(GatheredStateTest, IsThatOfTheUnwrappedModel) {
  const int num_groups = GetParam().second;
  Job<Nested> job = AdamJob(2);
  job.edit = [&](SessionOptions* options) { Configure(options, GetParam().first, num_groups); };
  SessionOptions configured = Options(2);
  job.edit(&configured);
  const auto plain = MakeNested();
  const auto own = PlainOptimizer(*plain, configured.config);
  for (int64_t step = 1; step <= 3; ++step) {
    ForgetGradients(*plain);
    for (int rank = 0; rank < 2; ++rank) (LossOf(*plain, step, rank) / 2).backward();
    own->step();
  }
  OnRanks<Nested>(job, [&](Trainer<Nested>& rank) {
    Train(rank, 3);
    OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
    const auto expected = OptimStateOf(*own, optim.names());
    ASSERT_OK(expected);
    ASSERT_OK_AND_ASSIGN(const OptimStateDict full, optim.Get());
    ExpectNearState(full, *expected);
    EXPECT_EQ(full.last_step, 3);
    ASSERT_EQ(full.groups.size(), num_groups);
    for (int g = 0; g < num_groups; ++g) {
      EXPECT_EQ(full.groups[g].params, expected->groups[g].params);
      EXPECT_EQ(full.groups[g].numbers.learning_rate, expected->groups[g].numbers.learning_rate);
      EXPECT_EQ(full.groups[g].numbers.weight_decay, expected->groups[g].numbers.weight_decay);
    }
    // Rows of it.
    ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kSharded}));
    ASSERT_OK_AND_ASSIGN(const OptimStateDict rows, optim.Get());
    EXPECT_EQ(rows.state.keys(), full.state.keys());
    for (const auto& item : rows.state) {
      for (const auto& [name, entry] : item.value().moments) {
        const torch::Tensor& whole = full.state[item.key()].moments.at(name).tensor;
        EXPECT_TRUE(torch::equal(entry.tensor, whole.narrow(0, entry.begin, entry.tensor.size(0))));
      }
      EXPECT_EQ(item.value().step, full.state[item.key()].step);
    }
    // Rank 0's alone.
    ASSERT_OK(rank.states->types().Set(
        *rank.model, {StateDictType::kFull, {}, FullOptimStateDictConfig{true, true}}));
    ASSERT_OK_AND_ASSIGN(const OptimStateDict first, optim.Get());
    EXPECT_EQ(first.state.size(), rank.rank == 0 ? full.state.size() : 0);
    EXPECT_EQ(first.groups.empty(), rank.rank != 0);
  });
}

// OSD-2.
TEST_F(OptimStateTest, KeysAreTheParametersNamesWithNestedUnitsAndIgnoredModules) {
  const SessionOptions options = Options(2);
  ForEachRank(2, [&](int r) {
    auto model = std::make_shared<Experts>();
    AttachOptions attach;
    attach.ignored.modules = {model->expert.ptr()};
    SessionOptions of_rank = options;
    of_rank.rank = r;
    ASSERT_OK_AND_ASSIGN(const auto sharded,
                         ShardedModel::Attach(model, of_rank, AlwaysWrap(), attach));
    ASSERT_OK(sharded->RunStep([&] {
      LossOf(*model, 1, r).backward();
      return sharded->Step();
    }));
    StateDicts states(sharded.get());
    OptimStateDicts optim(sharded.get(), &states.types());
    ASSERT_OK_AND_ASSIGN(const OptimStateDict dict, optim.Get());
    ASSERT_OK_AND_ASSIGN(const StateDict of_model, states.Get(*model));
    std::vector<std::string> expected;
    for (const std::string& key : of_model.keys()) {
      if (key.rfind("expert.", 0) != 0) expected.push_back(key);
    }
    EXPECT_EQ(optim.names(), expected);
    std::vector<std::string> keys = dict.state.keys();
    std::sort(keys.begin(), keys.end());
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(keys, expected);
  });
}

// OSD-4 (what a rank has), OSD-8.
TEST_F(OptimStateTest, FlatStateOfWholeOrRowsIsTheRanksOwn) {
  OnRanks<Nested>(AdamJob(3), [&](Trainer<Nested>& rank) {
    Train(rank, 2);
    OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
    StateDictTypes& types = rank.states->types();
    ASSERT_OK(types.Set(*rank.model, {StateDictType::kLocal}));
    ASSERT_OK_AND_ASSIGN(const OptimStateDict flat, optim.Get());
    EXPECT_EQ(flat.state.keys(), std::vector<std::string>({"_flat_param", "1._flat_param",
                                                           "1.0._flat_param", "2._flat_param"}));
    for (const StateDictType type :
         {StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal}) {
      ASSERT_OK(types.Set(*rank.model, {type}));
      ASSERT_OK_AND_ASSIGN(const OptimStateDict dict, optim.Get());
      ASSERT_OK_AND_ASSIGN(const OptimStateDict to_load, optim.ToLoad(dict));
      ExpectEqualState(to_load, flat);
    }
  });
}

// OSD-12, OSD-13: to an unwrapped optimizer, by ids, which continues as the job does; and back.
TEST_F(OptimStateTest, ByIdsAPlainOptimizerGoesOnAsTheJobDoes) {
  Job<Nested> job = AdamJob(1);
  job.edit = [](SessionOptions* options) { Configure(options, OptimizerKind::kAdam, 2); };
  OnRanks<Nested>(job, [&](Trainer<Nested>& rank) {
    Train(rank, 2);
    OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
    ASSERT_OK_AND_ASSIGN(const OptimStateDict dict, optim.Get());
    ASSERT_OK_AND_ASSIGN(const OptimStateDict ids,
                         Rekey(dict, OptimStateKeyType::kParamId, optim.names()));
    const auto plain = MakeNested();
    const auto own = PlainOptimizer(*plain, rank.sharded->session().config());
    std::vector<std::string> id_names;
    for (size_t id = 0; id < optim.names().size(); ++id) id_names.push_back(std::to_string(id));
    EXPECT_EQ(ParamsOf(ids), id_names);
    {
      const torch::NoGradGuard no_grad;
      const Tensors whole = Whole(rank);
      for (auto& item : plain->named_parameters()) item.value().copy_(whole.at(item.key()));
    }
    ASSERT_OK(SetOptimState(ids, id_names, own.get()));
    ForgetGradients(*plain);
    LossOf(*plain, 9, 0).backward();
    own->step();
    ASSERT_OK(rank.sharded->RunStep([&] {
      LossOf(*rank.model, 9, 0).backward();
      return rank.sharded->Step();
    }));
    ExpectNear(Whole(rank), CopyOf(*plain), 1e-6);
    // And what it has now is what the job has.
    const auto of_plain = OptimStateOf(*own, id_names);
    ASSERT_OK(of_plain);
    ASSERT_OK_AND_ASSIGN(const OptimStateDict names,
                         Rekey(*of_plain, OptimStateKeyType::kParamName, optim.names()));
    ASSERT_OK_AND_ASSIGN(const OptimStateDict after, optim.Get());
    ExpectNearState(names, after);
    ASSERT_OK(optim.Load(names));
    ASSERT_OK_AND_ASSIGN(const OptimStateDict loaded, optim.Get());
    ExpectNearState(loaded, names);
    EXPECT_EQ(loaded.last_step, 3);  // The dictionary had none.
  });
}

// OSD-18.
TEST_F(OptimStateTest, BeforeTheFirstStepThereIsNone) {
  OnRanks<Nested>(AdamJob(2), [&](Trainer<Nested>& rank) {
    OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
    for (const StateDictType type :
         {StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal}) {
      ASSERT_OK(rank.states->types().Set(*rank.model, {type}));
      ASSERT_OK_AND_ASSIGN(const OptimStateDict dict, optim.Get());
      EXPECT_TRUE(dict.state.is_empty());
      EXPECT_EQ(dict.groups[0].params.size(), rank.model->named_parameters().size());
      EXPECT_EQ(dict.groups[0].numbers.learning_rate, 0.01);
      EXPECT_EQ(dict.last_step, 0);
      ASSERT_OK(optim.Load(dict));
    }
  });
}

// OSD-15, OSD-22: a first parameter that no step uses, and one that only odd steps do.
TEST_F(OptimStateTest, ParametersKeepStepsOfTheirOwnOrNone) {
  OnRanks<Sometimes>(SometimesJob(2), [&](Trainer<Sometimes>& rank) {
    OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
    for (int64_t step = 1; step <= 5; ++step) {
      TrainOn(rank, step);
      for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded}) {
        ASSERT_OK(rank.states->types().Set(*rank.model, {type}));
        ASSERT_OK_AND_ASSIGN(const OptimStateDict dict, optim.Get());
        EXPECT_FALSE(dict.state.contains("unused"));
        EXPECT_EQ(dict.state["always"].step, step);
        EXPECT_EQ(dict.state["sometimes"].step, (step + 1) / 2);
        ASSERT_OK(optim.Load(dict));
        ASSERT_OK_AND_ASSIGN(const OptimStateDict again, optim.Get());
        ExpectEqualState(again, dict);
      }
    }
  });
}

}  // namespace
}  // namespace tessera::conformance
