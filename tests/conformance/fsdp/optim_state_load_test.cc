// Where an optimizer's state comes from, and what is refused: OSD-4 to OSD-7, OSD-9 to OSD-11,
// OSD-17, OSD-19, OSD-21.
#include "base/steady_time.h"
#include "client/rpc/job_rpc.h"
#include "tessera/torch/optim_state_dicts.h"
#include "tests/conformance/fsdp/optim_state_fixture.h"

namespace tessera::conformance {
namespace {

using testing::HasSubstr;

class LoadOptimStateTest : public OptimStateTest {
 protected:
  // What a job has after some steps, and after some more.
  struct Saved {
    StateDict model;
    OptimStateDict optim;
    Tensors later;
  };
  static constexpr int64_t kMore = 2;

  // FULL, by every rank; rank 0's.
  Saved TrainAndSave(const Job<Nested>& job) {
    Saved saved;
    OnRanks<Nested>(job, [&](Trainer<Nested>& rank) {
      Train(rank, 3);
      OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
      ASSERT_OK_AND_ASSIGN(const StateDict model, rank.states->Get(*rank.model));
      ASSERT_OK_AND_ASSIGN(const OptimStateDict dict, optim.Get());
      GoOn(rank);
      const Tensors later = Whole(rank);
      if (rank.rank == 0) saved = {model, dict, later};
    });
    return saved;
  }
  static void GoOn(Trainer<Nested>& rank) {
    for (int64_t step = 4; step < 4 + kMore; ++step) {
      ASSERT_OK(rank.sharded->RunStep([&] {
        LossOf(*rank.model, step, rank.rank).backward();
        return rank.sharded->Step();
      }));
    }
  }
  // Adam's exp_avg and exp_avg_sq of a parameter, of this value.
  static OptimParamState StateOf(const torch::Tensor& like, double value, int64_t step) {
    OptimParamState state;
    state.step = step;
    for (const char* moment : {"exp_avg", "exp_avg_sq"})
      state.moments[moment] = StateEntry::Whole(torch::full_like(like, value).detach());
    return state;
  }
};

// OSD-4, OSD-7, OSD-9 (FULL): whole on every rank, or on rank 0 alone.
TEST_F(LoadOptimStateTest, JobOfOtherUnitsGoesOnToTheSameBits) {
  for (const OptimizerKind optimizer : {OptimizerKind::kAdam, OptimizerKind::kSgd}) {
    for (const bool from_rank0 : {false, true}) {
      const auto edit = [optimizer](SessionOptions* options) { Configure(options, optimizer, 2); };
      Job<Nested> job = AdamJob(2);
      job.edit = edit;
      const Saved saved = TrainAndSave(job);
      job = AdamJob(2, ManyUnits());
      job.edit = edit;
      OnRanks<Nested>(job, [&](Trainer<Nested>& rank) {
        OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
        LoadStateOptions options;
        options.from_rank0 = from_rank0;
        const bool has = !from_rank0 || rank.rank == 0;
        ASSERT_OK(rank.states->Load(*rank.model, has ? saved.model : StateDict(), options));
        ASSERT_OK_AND_ASSIGN(const auto groups,
                             optim.Load(has ? saved.optim : OptimStateDict(), options));
        ASSERT_EQ(groups.size(), 2);  // OSD-10.
        EXPECT_EQ(groups[0].learning_rate, 0.01);
        EXPECT_EQ(groups[1].learning_rate, 0.02);
        EXPECT_EQ(groups[1].weight_decay, 0.1);
        ASSERT_OK_AND_ASSIGN(const OptimStateDict loaded, optim.Get());
        ExpectEqualState(loaded, saved.optim);
        EXPECT_EQ(rank.sharded->next_step(), 4);
        GoOn(rank);
        ExpectEqual(Whole(rank), saved.later);
      });
    }
  }
}

// OSD-5, OSD-6, OSD-9: half the world, another one, nothing sharded.
TEST_F(LoadOptimStateTest, WorldAndStrategyMayBeOthers) {
  const Saved saved = TrainAndSave(AdamJob(4));
  for (const auto& [world, strategy] :
       {std::pair(2, Strategy::kFullShard), std::pair(3, Strategy::kShardGradOp),
        std::pair(2, Strategy::kNoShard), std::pair(1, Strategy::kFullShard)}) {
    Job<Nested> job = AdamJob(world, ManyUnits());
    job.edit = [strategy = strategy](SessionOptions* options) {
      Configure(options, OptimizerKind::kAdam);
      options->config.strategy = strategy;
    };
    OnRanks<Nested>(job, [&](Trainer<Nested>& rank) {
      OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
      ASSERT_OK(optim.Load(saved.optim));
      ASSERT_OK_AND_ASSIGN(const OptimStateDict loaded, optim.Get());
      ExpectEqualState(loaded, saved.optim);
    });
  }
}

// OSD-9 (SHARDED), OSD-19, OSD-21: what a job has comes back to it, whatever happened since.
TEST_F(LoadOptimStateTest, EveryTypeBringsTheStateBack) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
    Job<Nested> job = AdamJob(3);
    job.edit = [strategy](SessionOptions* options) {
      Configure(options, OptimizerKind::kAdamW);
      options->config.strategy = strategy;
    };
    OnRanks<Nested>(job, [&](Trainer<Nested>& rank) {
      Train(rank, 2);
      OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
      ASSERT_OK_AND_ASSIGN(const OptimStateDict before, optim.Get());
      for (const StateDictType type :
           {StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal}) {
        ASSERT_OK(rank.states->types().Set(*rank.model, {type}));
        if (strategy == Strategy::kNoShard && type == StateDictType::kLocal) {
          EXPECT_THAT(optim.Get(), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("whole on every rank")));
          continue;
        }
        ASSERT_OK_AND_ASSIGN(const OptimStateDict dict, optim.Get());
        Train(rank, 1);
        ASSERT_OK(optim.Load(dict));
        EXPECT_EQ(rank.sharded->next_step(), 3);
        ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kFull}));
        ASSERT_OK_AND_ASSIGN(const OptimStateDict after, optim.Get());
        ExpectEqualState(after, before);
      }
    });
  }
}

// OSD-11: a flat part has one step for its unit.
TEST_F(LoadOptimStateTest, UnequalStepsWithinAUnitAreRefusedFlatByNameAndKeptOtherwise) {
  OnRanks<Sometimes>(SometimesJob(2), [&](Trainer<Sometimes>& rank) {
    OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
    TrainOn(rank, 1);
    TrainOn(rank, 2);
    ASSERT_OK_AND_ASSIGN(const OptimStateDict full, optim.Get());
    EXPECT_THAT(optim.ToLoad(full), StatusIs(absl::StatusCode::kFailedPrecondition,
                                             HasSubstr("'unused' has 0 and 'always' 2")));
    ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kLocal}));
    EXPECT_THAT(optim.Get(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'always'")));
    ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kFull}));
    ASSERT_OK(optim.Load(full));
    ASSERT_OK_AND_ASSIGN(const OptimStateDict after, optim.Get());
    ExpectEqualState(after, full);
    // Every rank found the error, perhaps while another was in the call before: the others, told of
    // it, would have lost theirs.
    ASSERT_OK_AND_ASSIGN(const v1::Job job, GetJob({cluster_->coordinator_address()}, "job1",
                                                   SteadyNow() + absl::Minutes(1)));
    EXPECT_EQ(job.epoch(), 1);
  });
}

// OSD-17.
TEST_F(LoadOptimStateTest, WithoutParamGroupsTheStateComesBackAndNoNumbers) {
  OnRanks<Nested>(AdamJob(2), [&](Trainer<Nested>& rank) {
    Train(rank, 2);
    OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
    ASSERT_OK_AND_ASSIGN(const OptimStateDict full, optim.Get());
    OptimStateDict without = full;
    without.groups.clear();
    ASSERT_OK_AND_ASSIGN(const OptimStateDict flat, optim.ToLoad(without));
    EXPECT_TRUE(flat.groups.empty());
    Train(rank, 1);
    ASSERT_OK_AND_ASSIGN(const auto groups, optim.Load(without));
    EXPECT_TRUE(groups.empty());
    ASSERT_OK_AND_ASSIGN(const OptimStateDict after, optim.Get());
    ExpectEqualState(after, full);
  });
}

// OSD-10: numbers of the checkpoint are the next step's, if the caller says so.
TEST_F(LoadOptimStateTest, NumbersOfTheDictionaryAreThoseOfTheStepThatIsGivenThem) {
  OnRanks<Nested>(AdamJob(2), [&](Trainer<Nested>& rank) {
    Train(rank, 1);
    OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
    ASSERT_OK_AND_ASSIGN(OptimStateDict dict, optim.Get());
    dict.groups[0].numbers.learning_rate = 0.125;
    StepOptions options;
    ASSERT_OK_AND_ASSIGN(options.groups, optim.Load(dict));
    ASSERT_OK(rank.sharded->RunStep([&] {
      LossOf(*rank.model, 2, rank.rank).backward();
      return rank.sharded->StepWithResult(options).status();
    }));
    ASSERT_OK_AND_ASSIGN(const OptimStateDict after, optim.Get());
    EXPECT_EQ(after.groups[0].numbers.learning_rate, 0.125);
  });
}

TEST_F(LoadOptimStateTest, WhatDoesNotFitIsEveryRanksErrorByNameAndNothingIsSet) {
  OnRanks<Nested>(AdamJob(2), [&](Trainer<Nested>& rank) {
    Train(rank, 1);
    OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
    ASSERT_OK_AND_ASSIGN(const OptimStateDict full, optim.Get());
    const torch::Tensor bias = torch::zeros({4});
    // On rank 1 alone.
    const auto refused = [&](const std::function<void(OptimStateDict*)>& change,
                             absl::StatusCode code, const char* text) {
      OptimStateDict dict = full;
      if (rank.rank == 1) change(&dict);
      EXPECT_THAT(optim.Load(dict), StatusIs(code, HasSubstr(text)));
    };
    refused([&](auto* d) { d->state.insert("stranger", StateOf(bias, 1, 1)); },
            absl::StatusCode::kNotFound, "'stranger' is not a parameter");
    refused([&](auto* d) { d->state["2.bias"].moments.erase("exp_avg"); },
            absl::StatusCode::kFailedPrecondition, "'2.bias': it has no 'exp_avg'");
    refused([&](auto* d) { d->state["2.bias"].moments["momentum_buffer"] = {}; },
            absl::StatusCode::kFailedPrecondition, "has no 'momentum_buffer'");
    refused([&](auto* d) { d->state["2.bias"] = StateOf(torch::zeros({5}), 1, 1); },
            absl::StatusCode::kInvalidArgument, "its shape is [5]");
    refused([&](auto* d) { d->state["2.bias"].step = -3; }, absl::StatusCode::kInvalidArgument,
            "its step is -3");
    refused([&](auto* d) { d->groups.push_back(d->groups[0]); }, absl::StatusCode::kInvalidArgument,
            "2 param groups");
    refused([&](auto* d) { d->groups[0].numbers.beta1 = 2; }, absl::StatusCode::kInvalidArgument,
            "beta1");
    refused([&](auto* d) { d->groups[0].formula->nesterov = true; },
            absl::StatusCode::kFailedPrecondition, "param group 0 has nesterov on");
    refused([&](auto* d) { d->groups[0].formula->dampening = 0.5; },
            absl::StatusCode::kFailedPrecondition, "has dampening 0.5");
    refused(
        [&](auto* d) {
          d->groups[0].numbers.weight_decay = 0.5;
          d->groups[0].formula->decoupled_weight_decay ^= true;
        },
        absl::StatusCode::kFailedPrecondition, "decoupled");
    refused([&](auto* d) { d->state["2.bias"].step = 7; }, absl::StatusCode::kFailedPrecondition,
            "ranks 0 and 1 load optimizer states that differ");
    refused([&](auto* d) { d->state.erase("2.bias"); }, absl::StatusCode::kFailedPrecondition,
            "ranks 0 and 1");
    ASSERT_OK_AND_ASSIGN(const OptimStateDict after, optim.Get());
    ExpectEqualState(after, full);
    ASSERT_OK(rank.sharded->RunStep([&] {
      EXPECT_THAT(optim.Load(full),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("within a step")));
      LossOf(*rank.model, 2, rank.rank).backward();
      return rank.sharded->Step();
    }));
  });
}

TEST_F(LoadOptimStateTest, MomentThatRankZeroCannotConvertIsEveryRanksErrorAndNothingIsSet) {
  OnRanks<Nested>(AdamJob(2), [&](Trainer<Nested>& rank) {
    Train(rank, 1);
    OptimStateDicts optim(rank.sharded.get(), &rank.states->types());
    ASSERT_OK_AND_ASSIGN(const OptimStateDict full, optim.Get());
    OptimStateDict dict = full;
    torch::Tensor& moment = dict.state["2.bias"].moments["exp_avg_sq"].tensor;
    moment = moment.to_sparse();
    LoadStateOptions options;
    options.from_rank0 = true;
    EXPECT_THAT(optim.Load(dict, options),
                StatusIs(absl::StatusCode::kUnknown, HasSubstr("parse")));
    ASSERT_OK_AND_ASSIGN(const OptimStateDict after, optim.Get());
    ExpectEqualState(after, full);
    Train(rank, 1);
  });
}

}  // namespace
}  // namespace tessera::conformance
