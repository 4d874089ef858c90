// When units are asked for, and that it changes no bit: the order is read from the flight record,
// and what is unsharded at a moment from the trainer's windows.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/conformance/fsdp/chain_model.h"
#include "tests/testing/flight_log.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::Block;
using testing_support::ReadFlightLog;
using testing_support::UnshardsAndReductions;
using testing_support::Values;

constexpr int kSteps = 3;

class PrefetchOrderTest : public testing_support::ChainTest {
 protected:
  struct Run {
    std::string order;    // Of the last step.
    std::string windows;  // Of the last step, while each block computes: "f0: 0 1, ... b0: 0 1".
    Values values;
  };

  // Names in the flight record are shortened: "U root U 0".
  static std::string Short(std::string script) {
    for (size_t at; (at = script.find("block")) != std::string::npos;) script.erase(at, 5);
    return script;
  }

  Run Train(const std::string& job, const std::function<void(JobConfig*)>& configure,
            const std::function<void(Trainer&)>& prepare = nullptr) {
    Run run;
    OnEachRank(job, configure, [&](Trainer& trainer) {
      std::string windows;
      auto& blocks = trainer.chain->blocks;
      for (size_t i = 0; i < blocks.size(); ++i) {
        blocks[i]->during = [&, i](bool in_backward) {
          absl::StrAppend(&windows, windows.empty() ? "" : ", ", in_backward ? "b" : "f", i, ":");
          for (size_t unit = 1; unit <= blocks.size(); ++unit)
            if (!trainer.model->session().closed(unit)) absl::StrAppend(&windows, " ", unit - 1);
        };
      }
      if (prepare) prepare(trainer);
      for (int step = 1; step <= kSteps; ++step) {
        windows.clear();
        ASSERT_OK(TrainStep(trainer));
      }
      for (auto& block : blocks) block->during = nullptr;
      const Values values = WholeParameters(trainer);
      if (trainer.rank != 0) return;
      run.windows = windows;
      run.values = values;
      run.order =
          Short(UnshardsAndReductions(ReadFlightLog(cluster_->worker_address(), job, 0), kSteps));
    });
    return run;
  }
};

constexpr char kForward[] = "U root U 0 U 1 U 2 U 3";

TEST_F(PrefetchOrderTest, BackwardAsksOneUnitEarlyBeforeOrAfterTheGradientsOrNot) {
  // COMM-2, COMM-4, COMM-7, F2COMM-4, F2COMM-9, BWP-2 to BWP-5.
  const auto with = [](BackwardPrefetch prefetch) {
    return [prefetch](JobConfig* config) { config->backward_prefetch = prefetch; };
  };
  const Run none = Train("none", with(BackwardPrefetch::kNone));
  EXPECT_EQ(none.order, absl::StrCat(kForward, " U 3 R 3 U 2 R 2 U 1 R 1 U 0 R 0 R root"));
  EXPECT_EQ(none.windows, "f0: 0, f1: 1, f2: 2, f3: 3, b3: 3, b2: 2, b1: 1, b0: 0");
  const Run pre = Train("pre", with(BackwardPrefetch::kPre));
  EXPECT_EQ(pre.order, absl::StrCat(kForward, " U 3 U 2 R 3 U 1 R 2 U 0 R 1 R 0 R root"));
  EXPECT_EQ(pre.windows, "f0: 0, f1: 1, f2: 2, f3: 3, b3: 2 3, b2: 1 2, b1: 0 1, b0: 0");
  const Run post = Train("post", with(BackwardPrefetch::kPost));
  EXPECT_EQ(post.order, pre.order) << "the last unit's own unshard is late, which shows below";
  EXPECT_EQ(post.windows, none.windows) << "never two at once";
  ExpectSameBits(pre.values, none.values, "pre");
  ExpectSameBits(post.values, none.values, "post");
}

TEST_F(PrefetchOrderTest, ForwardAsksOneUnitEarlyOnceItHasARecord) {
  const Run run = Train("forward", [](JobConfig* config) {
    config->forward_prefetch = true;
    config->backward_prefetch = BackwardPrefetch::kNone;
  });
  EXPECT_EQ(run.windows, "f0: 0 1, f1: 1 2, f2: 2 3, f3: 3, b3: 3, b2: 2, b1: 1, b0: 0");
  EXPECT_EQ(run.order, absl::StrCat(kForward, " U 3 R 3 U 2 R 2 U 1 R 1 U 0 R 0 R root"));
  const Run plain = Train("plain", nullptr);
  ExpectSameBits(run.values, plain.values, "forward prefetch");
}

TEST_F(PrefetchOrderTest, ParametersThatAreKeptAreAskedForOnce) {  // COMM-5, F2COMM-9
  for (const BackwardPrefetch prefetch : {BackwardPrefetch::kPre, BackwardPrefetch::kPost}) {
    const Run run = Train(absl::StrCat("keep", static_cast<int>(prefetch)), [&](JobConfig* config) {
      config->strategy = Strategy::kShardGradOp;
      config->backward_prefetch = prefetch;
    });
    EXPECT_EQ(run.order, absl::StrCat(kForward, " R 3 R 2 R 1 R 0 R root"));
  }
}

TEST_F(PrefetchOrderTest, ListsSayWhatIsAskedForInPlaceOfTheDefault) {
  // F2COMM-13, F2COMM-14, F2TR-8: two units ahead in both directions.
  const Run plain = Train("plain", nullptr);
  const Run run = Train("lists", nullptr, [](Trainer& trainer) {
    auto& blocks = trainer.chain->blocks;
    for (int i = 0; i < 4; ++i) {
      ShardedModel::Modules behind, before;
      for (int k = i + 1; k <= i + 2 && k < 4; ++k) behind.push_back(blocks[k].get());
      for (int k = i - 1; k >= i - 2 && k >= 0; --k) before.push_back(blocks[k].get());
      ASSERT_OK(trainer.model->SetForwardPrefetch(*blocks[i], behind));
      ASSERT_OK(trainer.model->SetBackwardPrefetch(*blocks[i], before));
    }
  });
  EXPECT_EQ(run.windows,
            "f0: 0 1 2, f1: 1 2 3, f2: 2 3, f3: 3, b3: 1 2 3, b2: 0 1 2, b1: 0 1, b0: 0");
  EXPECT_EQ(run.order, absl::StrCat(kForward, " U 3 U 2 U 1 R 3 U 0 R 2 R 1 R 0 R root"));
  ExpectSameBits(run.values, plain.values, "lists");
}

TEST_F(PrefetchOrderTest, WrongGuessesCostUnshardsAndNothingElse) {  // F2COMM-17
  const auto train = [&](const std::string& job, bool guess) {
    Values values;
    OnEachRank(
        job,
        [&](JobConfig* config) {
          config->forward_prefetch = guess;
          config->backward_prefetch = guess ? BackwardPrefetch::kPre : BackwardPrefetch::kNone;
        },
        [&](Trainer& trainer) {
          if (guess) {
            auto& blocks = trainer.chain->blocks;
            // The first two are never in the same forward, and no backward comes back to the last.
            ASSERT_OK(trainer.model->SetForwardPrefetch(*blocks[0], {blocks[1].get()}));
            ASSERT_OK(trainer.model->SetBackwardPrefetch(*blocks[0], {blocks[3].get()}));
          }
          for (int step = 1; step <= 4; ++step) {
            trainer.chain->order =
                step % 2 == 0 ? std::vector<int>{3, 2, 1} : std::vector<int>{0, 2, 3};
            ASSERT_OK(TrainStep(trainer));
          }
          const Values all = WholeParameters(trainer);
          if (trainer.rank == 0) values = all;
        });
    return values;
  };
  const Values plain = train("alternating", false);
  ExpectSameBits(train("guessing", true), plain, "guessing");
  const auto log = ReadFlightLog(cluster_->worker_address(), "guessing", 0);
  EXPECT_EQ(Short(UnshardsAndReductions(log, 3)),
            "U root U 0 U 1 U 2 U 3 U 3 U 2 R 3 U 0 R 2 U 3 R 0 R root");
}

TEST_F(PrefetchOrderTest, RanksWithDifferentListsAreToldAndGoOn) {  // ORD-2
  OnEachRank("differ", nullptr, [&](Trainer& trainer) {
    auto& blocks = trainer.chain->blocks;
    const ShardedModel::Modules ahead = {blocks[trainer.rank == 0 ? 1 : 2].get()};
    ASSERT_OK(trainer.model->SetForwardPrefetch(*blocks[0], ahead));
    EXPECT_THAT(TrainStep(trainer), StatusIs(absl::StatusCode::kFailedPrecondition,
                                             testing::AllOf(HasSubstr("block1.linear.weight"),
                                                            HasSubstr("block2.linear.weight"))));
    ASSERT_OK(trainer.model->SetForwardPrefetch(*blocks[0], {}));
    ASSERT_OK(trainer.model->session().Recover());
    EXPECT_OK(TrainStep(trainer));
  });
}

TEST_F(PrefetchOrderTest, ModuleThatIsNoUnitIsRefusedByName) {
  OnEachRank("names", nullptr, [&](Trainer& trainer) {
    auto& blocks = trainer.chain->blocks;
    EXPECT_THAT(trainer.model->SetForwardPrefetch(*blocks[0]->linear, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Linear")));
    EXPECT_THAT(trainer.model->SetBackwardPrefetch(*blocks[0], {nullptr}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("null")));
    Block stranger;
    EXPECT_THAT(trainer.model->SetBackwardPrefetch(*blocks[0], {&stranger}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a unit")));
  });
}

}  // namespace
}  // namespace tessera
