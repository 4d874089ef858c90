// The state of a trainer's own optimizer on shards: OSD-1 and OSD-4 of it.
#include "tessera/torch/optim_state_dicts.h"
#include "tests/conformance/fsdp/optim_state_fixture.h"

namespace tessera::conformance {
namespace {

using testing::HasSubstr;

class ShardOptimStateTest : public OptimStateTest {
 protected:
  static std::unique_ptr<ShardOptimizer> MakeAdam(Trainer<Nested>& rank) {
    auto own =
        ShardOptimizer::Create(rank.sharded.get(), [](const std::vector<ShardTensor>& shards) {
          return std::make_unique<torch::optim::Adam>(TensorsOf(shards),
                                                      torch::optim::AdamOptions(0.01));
        });
    EXPECT_OK(own);
    return own.ok() ? *std::move(own) : nullptr;
  }
  // Steps by their numbers, so that a later job continues as an earlier one would have.
  static void Steps(Trainer<Nested>& rank, ShardOptimizer* own, int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      ASSERT_OK(rank.sharded->RunStep([&] {
        LossOf(*rank.model, step, rank.rank).backward();
        return own->Step().status();
      }));
    }
  }
};

TEST_F(ShardOptimStateTest, GatheredItIsThatOfTheUnwrappedModelAndOtherUnitsGoOnFromIt) {
  const auto plain = MakeNested();
  torch::optim::Adam of_plain(plain->parameters(), torch::optim::AdamOptions(0.01));
  for (int64_t step = 1; step <= 3; ++step) {
    ForgetGradients(*plain);
    for (int rank = 0; rank < 2; ++rank) (LossOf(*plain, step, rank) / 2).backward();
    of_plain.step();
  }
  const auto expected = OptimStateOf(of_plain, plain->named_parameters().keys());
  ASSERT_OK(expected);

  StateDict model;
  OptimStateDict saved;
  Tensors later;
  OnRanks<Nested>(AdamJob(2), [&](Trainer<Nested>& rank) {
    const auto own = MakeAdam(rank);
    Steps(rank, own.get(), 1, 4);
    ASSERT_OK_AND_ASSIGN(const OptimStateDict dict,
                         GatherOptimState(rank.sharded.get(), own.get()));
    ExpectNearState(dict, *expected);
    ASSERT_OK_AND_ASSIGN(const StateDict of_model, rank.states->Get(*rank.model));
    Steps(rank, own.get(), 4, 6);
    const Tensors whole = Whole(rank);
    if (rank.rank != 0) return;
    model = of_model;
    saved = dict;
    later = whole;
  });
  for (const int world : {2, 3}) {
    OnRanks<Nested>(AdamJob(world, ManyUnits()), [&](Trainer<Nested>& rank) {
      ASSERT_OK(rank.states->Load(*rank.model, model));
      const auto own = MakeAdam(rank);
      ASSERT_OK(SetShardOptimState(saved, rank.sharded.get(), own.get()));
      ASSERT_OK_AND_ASSIGN(const OptimStateDict loaded,
                           GatherOptimState(rank.sharded.get(), own.get()));
      ExpectEqualState(loaded, saved);
      if (world != 2) return;
      Steps(rank, own.get(), 4, 6);
      ExpectEqual(Whole(rank), later);
    });
  }
}

TEST_F(ShardOptimStateTest, WhatDoesNotFitOnOneRankIsEveryRanksErrorAndNothingIsSet) {
  OnRanks<Nested>(AdamJob(2), [&](Trainer<Nested>& rank) {
    const auto own = MakeAdam(rank);
    Steps(rank, own.get(), 1, 2);
    ASSERT_OK_AND_ASSIGN(const OptimStateDict saved,
                         GatherOptimState(rank.sharded.get(), own.get()));
    OptimStateDict wrong = saved;
    for (auto& item : wrong.state) item.value().step = 7;
    if (rank.rank == 1)
      wrong.state["2.bias"].moments["exp_avg"] = StateEntry::Whole(torch::ones({5}));
    EXPECT_THAT(SetShardOptimState(wrong, rank.sharded.get(), own.get()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("its shape is [5]")));
    wrong = saved;
    if (rank.rank == 0) wrong.state.insert("stranger", saved.state["2.bias"]);
    EXPECT_THAT(SetShardOptimState(wrong, rank.sharded.get(), own.get()),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("'stranger'")));
    ASSERT_OK_AND_ASSIGN(const OptimStateDict after,
                         GatherOptimState(rank.sharded.get(), own.get()));
    ExpectEqualState(after, saved);
  });
}

// What a step that is undone left in the optimizer is neither gathered nor kept.
TEST_F(ShardOptimStateTest, OfAStepThatFailedItIsWhatItWasBefore) {
  OnRanks<Nested>(AdamJob(2), [&](Trainer<Nested>& rank) {
    const auto own = MakeAdam(rank);
    Steps(rank, own.get(), 1, 3);
    ASSERT_OK_AND_ASSIGN(const OptimStateDict before,
                         GatherOptimState(rank.sharded.get(), own.get()));
    EXPECT_THAT(rank.sharded->RunStep([&]() -> absl::Status {
      LossOf(*rank.model, 3, rank.rank).backward();
      // The last rank fails in the middle of its step, after the optimizer of the first one ran.
      if (rank.rank == 1) return absl::ResourceExhaustedError("no more");
      return own->Step().status();
    }),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no more")));
    ASSERT_OK_AND_ASSIGN(const OptimStateDict after,
                         GatherOptimState(rank.sharded.get(), own.get()));
    ExpectEqualState(after, before);
  });
}

// The ranks' parts travel together, so they are of one dtype.
TEST_F(ShardOptimStateTest, MomentsOfAnotherDTypeOnOneRankAreEveryRanksError) {
  OnRanks<Nested>(AdamJob(2), [&](Trainer<Nested>& rank) {
    const auto own = MakeAdam(rank);
    Steps(rank, own.get(), 1, 2);
    if (rank.rank == 1) {
      for (auto& [key, state] : own->optimizer().state()) {
        auto& adam = static_cast<torch::optim::AdamParamState&>(*state);
        adam.exp_avg(adam.exp_avg().to(torch::kDouble));
      }
    }
    EXPECT_THAT(GatherOptimState(rank.sharded.get(), own.get()),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("ranks 0 and 1 have optimizers with state")));
  });
}

}  // namespace
}  // namespace tessera::conformance
