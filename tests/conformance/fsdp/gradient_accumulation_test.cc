// Gradients of several backwards in one step, reduced each time, at the end, or by some units only:
// the numbers are those of one backward over all samples, and what travels is counted.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/conformance/fsdp/chain_model.h"
#include "tests/testing/flight_log.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::ChainLoss;
using testing_support::CountOps;
using testing_support::FlightOp;
using testing_support::ReadFlightLog;
using testing_support::UnshardsAndReductions;
using testing_support::Values;

constexpr int kUnits = 5;  // The root and four blocks.

class GradientAccumulationTest : public testing_support::ChainTest {
 protected:
  // Of the mean over ranks and micro-batches, in one process.
  Values ReferenceGradients(int micro_batches) {
    auto chain = MakeChain();
    torch::Tensor loss = torch::zeros({});
    for (int rank = 0; rank < kWorldSize; ++rank) {
      for (int i = 0; i < micro_batches; ++i)
        loss = loss + ChainLoss(*chain, 1, rank, i) / (micro_batches * kWorldSize);
    }
    loss.backward();
    Values gradients;
    for (const auto& item : chain->named_parameters()) gradients[item.key()] = item.value().grad();
    return gradients;
  }

  // What the optimizer will get; all units are reduced.
  static Values ReducedGradients(Session& session) {
    Values gradients;
    for (int unit = 0; unit < session.num_units(); ++unit) {
      const auto& parameters = session.layout().units[unit].flat.parameters();
      EXPECT_OK(session.ReadGradients(unit, [&](int p, absl::Span<const float> values) {
        gradients[parameters[p].spec.name] =
            torch::tensor(std::vector<float>(values.begin(), values.end()))
                .view(parameters[p].spec.shape);
      }));
    }
    return gradients;
  }

  // One step of as many micro-batches; `before` each of them says what syncs.
  void RunStep(Trainer& trainer, int micro_batches, const std::function<void(int)>& before,
               const std::function<void()>& at_end = nullptr) {
    ASSERT_OK(trainer.model->RunStep([&] {
      for (int i = 0; i < micro_batches; ++i) {
        before(i);
        (ChainLoss(*trainer.chain, 1, trainer.rank, i) / micro_batches).backward();
      }
      if (at_end) at_end();
      return trainer.model->Step();
    }));
  }

  std::vector<FlightOp> LogOf(const std::string& job) {
    return ReadFlightLog(cluster_->worker_address(), job, 0);
  }
};

struct AccumulationCase {
  Strategy strategy;
  BackwardPrefetch prefetch;
};

class EveryAccumulationTest : public GradientAccumulationTest,
                              public testing::WithParamInterface<AccumulationCase> {};

TEST_P(EveryAccumulationTest, GradientsAreThoseOfAllSamplesAtOnceAndParametersWait) {
  // GA-1, GA-3: three micro-batches in no_sync, three out of it, three in it, or the other way
  // round; the last one is always reduced.
  constexpr int kMicroBatches = 9;
  const Values expected = ReferenceGradients(kMicroBatches);
  for (const bool sync_first : {false, true}) {
    const auto configure = [&](JobConfig* config) {
      config->strategy = GetParam().strategy;
      config->backward_prefetch = GetParam().prefetch;
      config->gradient_slots = 0;
    };
    OnEachRank(absl::StrCat("accumulate", sync_first), configure, [&](Trainer& trainer) {
      const Values initial = WholeParameters(trainer);
      std::unique_ptr<ShardedModel::NoSync> no_sync;
      const auto before = [&](int i) {
        const bool sync = (i / 3 % 2 == 0) == sync_first || i + 1 == kMicroBatches;
        if (sync) no_sync.reset();
        if (!sync && no_sync == nullptr)
          no_sync = std::make_unique<ShardedModel::NoSync>(trainer.model.get());
      };
      RunStep(trainer, kMicroBatches, before, [&] {
        const Values gradients = ReducedGradients(trainer.model->session());
        ASSERT_EQ(gradients.size(), expected.size());
        for (const auto& [name, tensor] : expected) {
          EXPECT_LT((gradients.at(name) - tensor).abs().max().item<float>(), 1e-6f) << name;
        }
        ExpectSameBits(WholeParameters(trainer), initial, "before the step");
      });
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, EveryAccumulationTest,
    testing::Values(AccumulationCase{Strategy::kFullShard, BackwardPrefetch::kNone},
                    AccumulationCase{Strategy::kFullShard, BackwardPrefetch::kPre},
                    AccumulationCase{Strategy::kFullShard, BackwardPrefetch::kPost},
                    AccumulationCase{Strategy::kShardGradOp, BackwardPrefetch::kNone},
                    AccumulationCase{Strategy::kShardGradOp, BackwardPrefetch::kPre},
                    AccumulationCase{Strategy::kShardGradOp, BackwardPrefetch::kPost},
                    AccumulationCase{Strategy::kNoShard, BackwardPrefetch::kNone},
                    AccumulationCase{Strategy::kNoShard, BackwardPrefetch::kPre},
                    AccumulationCase{Strategy::kNoShard, BackwardPrefetch::kPost}));

TEST_F(GradientAccumulationTest, NothingIsReducedInNoSyncAndKeptParametersAreNotAskedForAgain) {
  // COMM-1, COMM-4, COMM-6, COMM-7: three micro-batches, the last one synced.
  const std::pair<Strategy, int> cases[] = {
      {Strategy::kFullShard, 3 * (kUnits + kUnits - 1)},  // The root is kept until backward ends.
      {Strategy::kShardGradOp, kUnits},
      {Strategy::kNoShard, kUnits}};
  for (const auto& [strategy, unshards] : cases) {
    const std::string job = absl::StrCat("counts", static_cast<int>(strategy));
    const auto configure = [&, strategy = strategy](JobConfig* config) {
      config->strategy = strategy;
      config->gradient_slots = 0;
    };
    OnEachRank(job, configure, [&](Trainer& trainer) {
      const torch::nn::Module& root = *trainer.chain;
      RunStep(trainer, 3,
              [&](int i) { ASSERT_OK(trainer.model->SetRequiresGradientSync(i == 2, root)); });
    });
    EXPECT_EQ(CountOps(LogOf(job), "unshard", 1), unshards) << job;
    EXPECT_EQ(CountOps(LogOf(job), "reduce", 1), kUnits) << job;
  }
}

TEST_F(GradientAccumulationTest, WithOffloadItIsInNoSyncAlone) {  // GA-2
  const Values expected = ReferenceGradients(4);
  const auto offload = [](JobConfig* config) {
    config->gradient_slots = 0;
    config->cpu_offload = true;
  };
  OnEachRank("offload", offload, [&](Trainer& trainer) {
    const torch::nn::Module& root = *trainer.chain;
    RunStep(
        trainer, 4, [&](int i) { ASSERT_OK(trainer.model->SetRequiresGradientSync(i == 3, root)); },
        [&] {
          const Values gradients = ReducedGradients(trainer.model->session());
          for (const auto& [name, tensor] : expected) {
            EXPECT_LT((gradients.at(name) - tensor).abs().max().item<float>(), 1e-6f) << name;
          }
        });
    EXPECT_THAT(trainer.model->RunStep([&] {
      for (int i = 0; i < 2; ++i) ChainLoss(*trainer.chain, 1, trainer.rank, i).backward();
      return trainer.model->Step();
    }),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("cpu_offload")));
    EXPECT_OK(TrainStep(trainer));
  });
}

TEST_F(GradientAccumulationTest, SomeUnitsAccumulateWhileOthersReduce) {  // F2TR-17, F2TR-18
  const Values expected = ReferenceGradients(3);
  const auto slots = [](JobConfig* config) { config->gradient_slots = 0; };
  using Choose = std::function<absl::Status(Trainer&, bool sync)>;
  const struct {
    const char* name;
    Choose choose;
    int reductions;
  } cases[] = {
      {"root-alone",
       [](Trainer& t, bool sync) {
         return t.model->SetRequiresGradientSync(sync, *t.chain, /*recurse=*/false);
       },
       3 * (kUnits - 1) + 1},
      {"two-blocks",
       [](Trainer& t, bool sync) {
         const absl::Status status = t.model->SetRequiresGradientSync(sync, *t.chain->blocks[0]);
         if (!status.ok()) return status;
         return t.model->SetRequiresGradientSync(sync, *t.chain->blocks[2]);
       },
       3 * (kUnits - 2) + 2},
  };
  for (const auto& c : cases) {
    OnEachRank(c.name, slots, [&](Trainer& trainer) {
      RunStep(
          trainer, 3, [&](int i) { ASSERT_OK(c.choose(trainer, i == 2)); },
          [&] {
            const Values gradients = ReducedGradients(trainer.model->session());
            for (const auto& [name, tensor] : expected) {
              EXPECT_LT((gradients.at(name) - tensor).abs().max().item<float>(), 1e-6f) << name;
            }
          });
    });
    EXPECT_EQ(CountOps(LogOf(c.name), "reduce", 1), c.reductions) << c.name;
  }
}

TEST_F(GradientAccumulationTest, StepReducesWhatNoBackwardDid) {
  Values at_once, left;
  for (const bool sync : {true, false}) {
    const std::string job = absl::StrCat("left", sync);
    const auto slots = [](JobConfig* config) { config->gradient_slots = 0; };
    OnEachRank(job, slots, [&](Trainer& trainer) {
      RunStep(trainer, 1, [&](int) {
        ASSERT_OK(trainer.model->SetRequiresGradientSync(sync, *trainer.chain));
      });
      const Values values = WholeParameters(trainer);
      if (trainer.rank == 0) (sync ? at_once : left) = values;
    });
    EXPECT_EQ(CountOps(LogOf(job), "reduce", 1), kUnits);
  }
  ExpectSameBits(left, at_once, "reduced by the step");
}

TEST_F(GradientAccumulationTest, HookOfABlockCompressesThatBlockAlone) {  // HOOK-4
  OnEachRank("hook", nullptr, [&](Trainer& trainer) {
    EXPECT_THAT(
        trainer.model->RegisterCommHook(*trainer.chain->blocks[0]->linear, Fp16Compression()),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Linear")));
    ASSERT_OK(trainer.model->RegisterCommHook(*trainer.chain->blocks[1], Fp16Compression()));
    EXPECT_THAT(trainer.model->RegisterCommHook(Fp16Compression()),
                StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'block1'")));
    ASSERT_OK(TrainStep(trainer));
  });
  int64_t compressed = 0, other = 0;
  for (const FlightOp& op : LogOf("hook")) {
    if (op.op != "reduce") continue;
    if (op.unit == "block1") compressed = op.bytes;
    if (op.unit == "block2") other = op.bytes;
  }
  EXPECT_GT(compressed, 0);
  EXPECT_EQ(2 * compressed, other) << "the blocks are alike";
}

TEST_F(GradientAccumulationTest, WithoutASlotForEachUnitItIsRefusedByNameAndSoIsAStranger) {
  OnEachRank("slots", nullptr, [&](Trainer& trainer) {
    EXPECT_THAT(trainer.model->SetRequiresGradientSync(false, *trainer.chain->blocks[0]->linear),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Linear")));
    EXPECT_THAT(trainer.model->RunStep([&] {
      ShardedModel::NoSync no_sync(trainer.model.get());
      ChainLoss(*trainer.chain, 1, trainer.rank).backward();
      return trainer.model->Step();
    }),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         testing::AllOf(HasSubstr("gradient_slots = 0"), HasSubstr("'block"))));
    EXPECT_OK(TrainStep(trainer));
  });
}

}  // namespace
}  // namespace tessera
