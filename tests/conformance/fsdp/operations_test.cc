// Which operations a step makes, in which order, over how many bytes: read from the flight records.
// (PyTorch: test_fsdp_comm, _overlap, _fine_tune, test_fully_shard_comm)
#include "tests/conformance/fsdp/harness.h"
#include "tests/conformance/fsdp/models.h"

namespace tessera::conformance {
namespace {

using testing::ElementsAre;

constexpr int kWorldSize = 2;

// An mlp of width 4 has 64 + 16 + 64 + 4 elements; a rank's slice is 74, which ends on 128 bytes
// at 96, so 192 fp32 elements travel. The root's head has 16 + 4: 64.
class OperationsTest : public ConformanceTest {
 protected:
  // Trains `steps` steps on both ranks and returns rank 1's operations of each.
  std::vector<std::vector<std::string>> Train(
      const SessionOptions& options, int64_t steps,
      const std::function<void(MlpStack&, ShardedModel&, int64_t, int)>& pass) {
    ForEachRank(kWorldSize, [&](int rank) {
      SessionOptions own = options;
      own.rank = rank;
      auto model = std::make_shared<MlpStack>(4);
      ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own));
      for (int64_t step = 1; step <= steps; ++step) {
        ASSERT_OK(sharded->RunStep([&] {
          pass(*model, *sharded, step, rank);
          return sharded->Step();
        }));
      }
    });
    std::vector<std::vector<std::string>> operations;
    for (int64_t step = 1; step <= steps; ++step)
      operations.push_back(Operations(options.job_id, 1, step));
    for (int64_t step = 1; step <= steps; ++step)
      EXPECT_EQ(Operations(options.job_id, 0, step), operations[step - 1]) << "rank 0";
    return operations;
  }
  static void Pass(MlpStack& model, ShardedModel&, int64_t step, int rank) {
    LossOf(model, step, rank).backward();
  }
};

// COMM-2, COMM-3 (validation gathers nothing, so the first step is as the others), COMM-4, COMM-7,
// F2COMM-4, F2COMM-9, BWP-3, BWP-5.
TEST_F(OperationsTest, FullShardGathersEachUnitAgainOneUnitEarlyInBackwardButNotTheRoot) {
  for (const auto& step : Train(Options(kWorldSize), 3, Pass)) {
    EXPECT_THAT(step,
                ElementsAre("unshard root", "unshard mlp0", "unshard mlp1", "unshard mlp2",
                            "unshard mlp2", "reduce root 256", "unshard mlp1", "reduce mlp2 768",
                            "unshard mlp0", "reduce mlp1 768", "reduce mlp0 768", "step"));
  }
}

// BWP-2.
TEST_F(OperationsTest, WithoutPrefetchEachUnitIsGatheredWhenBackwardReachesIt) {
  SessionOptions options = Options(kWorldSize);
  options.config.backward_prefetch = BackwardPrefetch::kNone;
  for (const auto& step : Train(options, 2, Pass)) {
    EXPECT_THAT(step,
                ElementsAre("unshard root", "unshard mlp0", "unshard mlp1", "unshard mlp2",
                            "reduce root 256", "unshard mlp2", "reduce mlp2 768", "unshard mlp1",
                            "reduce mlp1 768", "unshard mlp0", "reduce mlp0 768", "step"));
  }
}

// COMM-5: and with no sharding the same, as parameters of a step must be waited for once.
TEST_F(OperationsTest, OtherStrategiesGatherOnceAStep) {
  for (const Strategy strategy : {Strategy::kShardGradOp, Strategy::kNoShard}) {
    SessionOptions options = Options(kWorldSize);
    options.config.strategy = strategy;
    for (const auto& step : Train(options, 3, Pass)) {
      EXPECT_THAT(step, ElementsAre("unshard root", "unshard mlp0", "unshard mlp1", "unshard mlp2",
                                    "reduce root 256", "reduce mlp2 768", "reduce mlp1 768",
                                    "reduce mlp0 768", "step"));
    }
  }
}

// COMM-1, COMM-7: nothing is reduced in no_sync; the backward after it reduces each unit once.
TEST_F(OperationsTest, NoSyncReducesNothing) {
  SessionOptions options = Options(kWorldSize);
  options.config.gradient_slots = 0;
  for (const auto& step :
       Train(options, 2, [](MlpStack&model, ShardedModel&sharded, int64_t step, int rank) {
         {
           ShardedModel::NoSync no_sync(&sharded);
           for (int i = 0; i < 3; ++i) LossOf(model, step + 10 * i, rank).backward();
         }
         for (int unit = 0; unit < 4; ++unit) EXPECT_FALSE(sharded.session().reduced(unit));
         LossOf(model, step, rank).backward();
       })) {
    EXPECT_EQ(Count(step, "reduce"), 4);
    EXPECT_EQ(Count(step, "unshard"), 4 * 7);
    EXPECT_EQ(step.back(), "step");
    EXPECT_EQ(step[step.size() - 2], "reduce mlp0 768");
  }
}

// COMM-8, F2COMM-18: what was asked for ahead is not gathered twice.
TEST_F(OperationsTest, UnshardAheadOfUseGathersNothingTwice) {
  const auto operations = Train(Options(kWorldSize), 2,
                                [](MlpStack& model, ShardedModel& sharded, int64_t step, int rank) {
                                  EXPECT_OK(sharded.session().UnshardAsync(3));
                                  EXPECT_OK(sharded.session().UnshardAsync(1));
                                  LossOf(model, step, rank).backward();
                                });
  for (const auto& step : operations) {
    EXPECT_EQ(step[0], "unshard mlp2");
    EXPECT_EQ(step[1], "unshard mlp0");
    EXPECT_EQ(Count(step, "unshard"), 7);
    EXPECT_EQ(Count(step, "reduce"), 4);
  }
}

// F2COMM-5.
TEST_F(OperationsTest, UnitsReshardedByHandAfterForwardAreGatheredAgainInBackward) {
  SessionOptions options = Options(kWorldSize);
  options.config.strategy = Strategy::kShardGradOp;
  for (const auto& step :
       Train(options, 2, [](MlpStack&model, ShardedModel&sharded, int64_t step, int rank) {
         const torch::Tensor loss = LossOf(model, step, rank);
         for (int unit = 0; unit < 4; ++unit) EXPECT_OK(sharded.session().Reshard(unit));
         loss.backward();
       })) {
    EXPECT_EQ(Count(step, "unshard"), 8);
    EXPECT_EQ(Count(step, "reduce"), 4);
  }
}

// F2COMM-7: the mlps and the root by default, the root alone without recursion.
TEST_F(OperationsTest, ReshardAfterForwardMayBeSetInTheMiddleOfARunAndChangesNoBit) {
  const struct {
    Strategy strategy;
    bool reshard, recurse;
    int unshards_before, unshards_after;
  } cases[] = {{Strategy::kFullShard, false, true, 7, 4},
               {Strategy::kFullShard, false, false, 7, 7},
               {Strategy::kFullShard, true, false, 7, 8},
               {Strategy::kShardGradOp, true, true, 4, 8},
               {Strategy::kShardGradOp, true, false, 4, 5}};
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message()
                 << Name(c.strategy) << ", set " << c.reshard << ", recursively " << c.recurse);
    SessionOptions options = Options(kWorldSize);
    options.config.strategy = c.strategy;
    std::vector<std::vector<double>> losses(kWorldSize), untouched(kWorldSize);
    const auto steps =
        Train(options, 4, [&](MlpStack& model, ShardedModel& sharded, int64_t step, int rank) {
          if (step == 3) {
            EXPECT_OK(sharded.SetReshardAfterForward(c.reshard, model, c.recurse));
          }
          const torch::Tensor loss = LossOf(model, step, rank);
          losses[rank].push_back(loss.item<double>());
          loss.backward();
          EXPECT_TRUE(sharded.session().closed(1)) << "after backward";
        });
    SessionOptions same = Options(kWorldSize);
    same.config.strategy = c.strategy;
    Train(same, 4, [&](MlpStack& model, ShardedModel&, int64_t step, int rank) {
      const torch::Tensor loss = LossOf(model, step, rank);
      untouched[rank].push_back(loss.item<double>());
      loss.backward();
    });
    EXPECT_EQ(losses, untouched);
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(Count(steps[i], "unshard"), i < 2 ? c.unshards_before : c.unshards_after)
          << "step " << i + 1;
      EXPECT_EQ(Count(steps[i], "reduce"), 4);
    }
  }
}

TEST_F(OperationsTest, ReshardAfterForwardOfAModuleThatIsNoUnitIsRefusedByName) {
  Train(Options(kWorldSize), 1, [](MlpStack& model, ShardedModel& sharded, int64_t step, int rank) {
    EXPECT_THAT(sharded.SetReshardAfterForward(false, *model.head),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("Linear")));
    LossOf(model, step, rank).backward();
  });
}

// F2COMM-11: two forwards, one backward: each unit's gradients come together and travel once.
TEST_F(OperationsTest, TwoForwardsBeforeABackwardReduceOnce) {
  for (const auto& step :
       Train(Options(kWorldSize), 2, [](MlpStack&model, ShardedModel&, int64_t step, int rank) {
         (LossOf(model, step, rank) + LossOf(model, step + 20, rank)).backward();
       })) {
    EXPECT_EQ(Count(step, "unshard root"), 1) << "the root stays";
    EXPECT_EQ(Count(step, "reduce"), 4);
    EXPECT_EQ(Count(step, "reduce mlp0 768"), 1);
  }
}

// F2COMM-10: the recomputation finds its unit gathered.
TEST_F(OperationsTest, CheckpointedUnitsMakeTheSameOperations) {
  const auto plain = Train(Options(kWorldSize), 2, Pass);
  const auto checkpointed =
      Train(Options(kWorldSize), 2, [](MlpStack& model, ShardedModel&, int64_t step, int rank) {
        model.checkpoints = true;
        LossOf(model, step, rank).backward();
      });
  EXPECT_EQ(checkpointed, plain);
}

TEST_F(OperationsTest, NothingIsAskedForThatAStepDoesNotUse) {
  SessionOptions options = Options(kWorldSize);
  options.config.backward_prefetch = BackwardPrefetch::kNone;
  const auto operations =
      Train(options, 3, [](MlpStack& model, ShardedModel&, int64_t step, int rank) {
        if (step == 2) {  // One unit alone.
          model.mlps[1]->forward(Samples(step, rank, {2, 4})).square().mean().backward();
        } else {
          LossOf(model, step, rank).backward();
        }
      });
  EXPECT_THAT(operations[1],
              ElementsAre("unshard mlp1", "unshard mlp1", "reduce mlp1 768", "step"));
  EXPECT_EQ(operations[2], operations[0]);
}

}  // namespace
}  // namespace tessera::conformance
