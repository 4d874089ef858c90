// cpu_offload on CPU workers, where it moves nothing: what upstream's tests say of it holds, and a
// run with it has the bits of one without.

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "gtest/gtest.h"
#include "tessera/torch/libtorch.h"
#include "tests/conformance/fsdp/harness.h"
#include "tests/conformance/fsdp/models.h"

namespace tessera::conformance {
namespace {

constexpr int kWorldSize = 2;

struct Case {
  Strategy strategy;
  bool delays;
};

class OffloadTest : public ConformanceTest, public testing::WithParamInterface<Case> {
 protected:
  void TearDown() override { DisarmAllFaultPoints(); }

  // Biases have hyper-parameters of their own, and the gradient is clipped.
  SessionOptions OffloadOptions(bool offload) {
    SessionOptions options = Options(kWorldSize);
    JobConfig& config = options.config;
    config.strategy = GetParam().strategy;
    config.cpu_offload = offload;
    config.max_gradient_norm = 0.01;
    ParamGroup biases = config.groups[0];
    biases.learning_rate *= 3;
    biases.weight_decay = 0.1;
    for (const auto& item : MlpStackImpl(3, 2).named_parameters()) {
      if (item.value().dim() == 1) biases.parameter_names.push_back(item.key());
    }
    config.groups.push_back(biases);
    return options;
  }

  static void ExpectOnCpu(ShardedModel& sharded, MlpStack& model) {
    SummonOptions with_grads;
    with_grads.with_grads = true;
    with_grads.writeback = false;
    ASSERT_OK(sharded.SummonFullParams(with_grads, [&] {
      for (const auto& item : model.named_parameters()) {
        EXPECT_TRUE(item.value().device().is_cpu()) << item.key();
        EXPECT_TRUE(item.value().grad().defined()) << item.key();
        EXPECT_TRUE(item.value().grad().device().is_cpu()) << item.key();
      }
      return absl::OkStatus();
    }));
  }

  // The norms of rank 0's steps and the parameters at the end.
  std::pair<std::vector<double>, Tensors> Train(const SessionOptions& options) {
    std::pair<std::vector<double>, Tensors> outcome;
    ForEachRank(kWorldSize, [&](int rank) {
      SessionOptions own = options;
      own.rank = rank;
      auto model = std::make_shared<MlpStack>(3, 2);
      ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own));
      for (const torch::Tensor& parameter : model->parameters())
        EXPECT_TRUE(parameter.device().is_cpu());
      for (int64_t step = 1; step <= 3; ++step) {
        ASSERT_OK(sharded->RunStep([&]() -> absl::Status {
          LossOf(*model, step, rank).backward();
          ExpectOnCpu(*sharded, *model);
          const auto result = sharded->StepWithResult();
          if (result.ok() && rank == 0) outcome.first.push_back(result->gradient_norm);
          return result.status();
        }));
      }
      const Tensors whole = WholeParameters(sharded.get(), *model);
      if (rank == 0) outcome.second = whole;
    });
    return outcome;
  }
};

// CLIP-4, ORIG-2, MISC-12, F2TR-6 (pinned memory: none here).
TEST_P(OffloadTest, TrainsAsThePlainModelWithParametersAndGradientsOnTheCpu) {
  SessionOptions options = OffloadOptions(true);
  auto plain = std::make_shared<MlpStack>(3, 2);
  const auto optimizer = PlainOptimizer(*plain, options.config);
  std::vector<double> norms;
  for (int64_t step = 1; step <= 3; ++step) {
    ForgetGradients(*plain);
    for (int rank = 0; rank < kWorldSize; ++rank)
      (LossOf(*plain, step, rank) / kWorldSize).backward();
    norms.push_back(
        torch::nn::utils::clip_grad_norm_(plain->parameters(), options.config.max_gradient_norm));
    EXPECT_GT(norms.back(), options.config.max_gradient_norm) << "so that clipping acts";
    optimizer->step();
  }
  const auto without = Train(OffloadOptions(false));
  if (GetParam().delays) ArmDelays(/*seed=*/11);
  const auto with = Train(options);
  ASSERT_EQ(with.first.size(), norms.size());
  for (size_t i = 0; i < norms.size(); ++i) EXPECT_NEAR(with.first[i], norms[i], 2e-5 * norms[i]);
  ExpectNear(with.second, CopyOf(*plain), 5e-6);
  EXPECT_EQ(with.first, without.first);
  ExpectNear(with.second, without.second, 0);
}

INSTANTIATE_TEST_SUITE_P(Strategies, OffloadTest,
                         testing::Values(Case{Strategy::kFullShard, false},
                                         Case{Strategy::kFullShard, true},
                                         Case{Strategy::kShardGradOp, false},
                                         Case{Strategy::kNoShard, false}),
                         [](const auto& info) {
                           return absl::StrCat(static_cast<int>(info.param.strategy),
                                               info.param.delays ? "Delayed" : "");
                         });

}  // namespace
}  // namespace tessera::conformance
