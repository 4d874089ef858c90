// What a user puts in place of parameters and gradients between steps. Comments name items of the
// conformance checklist.
#include "client/torch/replaced_parameters.h"

#include "absl/synchronization/barrier.h"
#include "base/status_matchers.h"
#include "client/torch/summon_full_params.h"
#include "client/torch/torch_cluster.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr double kRate = 0.5;

// Two weights, in a unit below the root; the root has one of its own.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    weights[0] = register_parameter("first", torch::full({3, 5}, 0.5));
    weights[1] = register_parameter("second", torch::full({5, 2}, -0.25));
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::matmul(torch::matmul(x, weights[0]), weights[1]);
  }
  void Register(int which, const torch::Tensor& tensor) {
    weights[which] = parameters_[which == 0 ? "first" : "second"] = tensor;
  }
  torch::Tensor weights[2];
};
struct PairNetImpl : torch::nn::Module {
  PairNetImpl() {
    pair = register_module("pair", std::make_shared<Sharded<PairImpl>>());
    scale = register_parameter("scale", torch::ones({2}));
  }
  torch::Tensor forward(torch::Tensor x) { return pair->forward(x) * scale; }
  std::shared_ptr<Sharded<PairImpl>> pair;
  torch::Tensor scale;
};
using PairNet = Sharded<PairNetImpl>;

torch::Tensor PairLoss(PairNet& net, int64_t step, int rank) {
  const torch::Tensor x = torch::cos(torch::arange(6).view({2, 3}) * (step + 1.0) + 2.0 * rank);
  return net.forward(x).square().mean();
}

enum class How { kData, kTensor };

void Replace(PairNet& net, int which, How how, const torch::Tensor& values) {
  if (how == How::kData) return net.pair->weights[which].set_data(values);
  net.pair->Register(which, values.clone().set_requires_grad(true));
}

std::map<std::string, torch::Tensor> ParametersOf(ShardedModel& model, PairNet& net) {
  std::map<std::string, torch::Tensor> copies;
  SummonOptions options;
  options.writeback = false;
  EXPECT_OK(model.SummonFullParams(options, [&] {
    for (const auto& item : net.named_parameters())
      copies[item.key()] = item.value().detach().clone();
    return absl::OkStatus();
  }));
  return copies;
}

class ReplacedTest : public TorchCluster {
 protected:
  void WithNet(int world_size, const std::function<void(int, ShardedModel&, PairNet&)>& body) {
    ForEachRank(world_size, [&](int rank) {
      auto net = std::make_shared<PairNet>();
      SessionOptions options = OptionsFor(rank, world_size);
      options.config.groups[0].learning_rate = kRate;
      options.job_id = "job" + std::to_string(++jobs_[rank]);
      auto model = ShardedModel::Attach(net, options);
      ASSERT_OK(model);
      body(rank, **model, *net);
    });
  }
  static absl::Status TrainStep(int rank, ShardedModel& model, PairNet& net) {
    return model.RunStep([&] {
      PairLoss(net, model.next_step(), rank).backward();
      return model.Step();
    });
  }
  // SGD without a cluster; `edit` is called before each step, `after` before the update.
  static void PlainStep(int world_size, int64_t step, PairNet& net,
                        const std::function<void()>& after = nullptr) {
    for (auto& parameter : net.parameters()) parameter.mutable_grad().reset();
    for (int rank = 0; rank < world_size; ++rank)
      (PairLoss(net, step, rank) / world_size).backward();
    if (after) after();
    torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) parameter.sub_(parameter.grad(), kRate);
  }
  static void ExpectSame(const std::map<std::string, torch::Tensor>& actual, PairNet& plain) {
    for (const auto& item : plain.named_parameters()) {
      EXPECT_TRUE(torch::allclose(actual.at(item.key()), item.value(), 1e-5, 1e-6))
          << item.key() << actual.at(item.key()) << item.value();
    }
  }

 private:
  int jobs_[4] = {};
};

TEST_F(ReplacedTest, ValuesOfOtherDataOrAnotherTensorAreTaken) {  // ORIG-8
  for (const How how : {How::kData, How::kTensor}) {
    for (const int which : {0, 1}) {
      WithNet(2, [&](int rank, ShardedModel& model, PairNet& net) {
        PairNet plain;
        // Kept, so that what hangs on its graph stays: each gradient must count once.
        const torch::Tensor held = PairLoss(net, 7, rank);
        for (int64_t step = 1; step <= 3; ++step) {
          if (step == 2) {
            const torch::Tensor values =
                torch::sin(torch::arange(which == 0 ? 15 : 10)).view_as(plain.pair->weights[which]);
            Replace(net, which, how, values.clone());
            torch::NoGradGuard no_grad;
            plain.pair->weights[which].copy_(values);
          }
          ASSERT_OK(TrainStep(rank, model, net));
          PlainStep(2, step, plain);
        }
        ExpectSame(ParametersOf(model, net), plain);
        EXPECT_EQ(model.session().num_writes(), 1);
      });
    }
  }
}

TEST_F(ReplacedTest, ChangedBetweenBackwardAndStepTheStepStartsFromIt) {
  WithNet(2, [&](int rank, ShardedModel& model, PairNet& net) {
    PairNet plain;
    ASSERT_OK(model.RunStep([&] {
      PairLoss(net, 1, rank).backward();
      net.scale.set_data(torch::full({2}, 3.0));
      return model.Step();
    }));
    PlainStep(2, 1, plain, [&] { plain.scale.set_data(torch::full({2}, 3.0)); });
    ExpectSame(ParametersOf(model, net), plain);
  });
}

TEST_F(ReplacedTest, GradientThatIsSetAfterBackwardIsTaken) {  // ORIG-9
  WithNet(2, [&](int rank, ShardedModel& model, PairNet& net) {
    PairNet plain;
    ASSERT_OK(model.RunStep([&] {
      PairLoss(net, 1, rank).backward();
      net.pair->weights[1].mutable_grad() = torch::full({5, 2}, 2.0);
      return model.Step();
    }));
    PlainStep(2, 1, plain, [&] {
      plain.pair->weights[1].mutable_grad() = torch::full({5, 2}, 2.0);
    });
    ExpectSame(ParametersOf(model, net), plain);
    ASSERT_OK(TrainStep(rank, model, net));
    PlainStep(2, 2, plain);
    ExpectSame(ParametersOf(model, net), plain);
  });
}

TEST_F(ReplacedTest, AnotherShapeIsAnErrorThatNamesTheParameter) {  // ORIG-10
  // Else a rank may get the other one's error while it reads.
  auto* both_have_read = new absl::Barrier(2);
  auto* have_read_again = new absl::Barrier(2);
  WithNet(2, [&](int rank, ShardedModel& model, PairNet& net) {
    const auto before = ParametersOf(model, net);
    if (both_have_read->Block()) delete both_have_read;
    // Different ranks, different parameters.
    net.pair->weights[rank].set_data(torch::ones({5, 5}));
    const absl::Status status = TrainStep(rank, model, net);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 testing::AllOf(HasSubstr("cannot write back parameter 'pair."),
                                                HasSubstr("its shape became [5, 5], it was ["))));
    UseClusterMemory(model.session(), 1, rank, net.pair->weights[rank]);
    const auto after = ParametersOf(model, net);
    if (have_read_again->Block()) delete have_read_again;
    for (const auto& [name, value] : before) EXPECT_TRUE(torch::equal(value, after.at(name)));
    const absl::Status gradient = model.RunStep([&] {
      PairLoss(net, 1, rank).backward();
      net.scale.mutable_grad() = torch::ones({3});
      return model.Step();
    });
    EXPECT_THAT(gradient,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("cannot write back the gradient of 'scale': its shape became "
                                   "[3], it was [2]")));
    ASSERT_OK(TrainStep(rank, model, net));
  });
}

TEST_F(ReplacedTest, AnotherNeedOfAGradientIsAnErrorThatNamesTheParameter) {
  WithNet(1, [&](int rank, ShardedModel& model, PairNet& net) {
    net.pair->Register(0, torch::ones({3, 5}));
    EXPECT_THAT(TrainStep(rank, model, net),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("parameter 'pair.first': it needed a gradient")));
  });
}

TEST_F(ReplacedTest, ChangeBetweenForwardAndBackwardIsAnError) {  // ORIG-11
  for (const How how : {How::kData, How::kTensor}) {
    WithNet(2, [&](int rank, ShardedModel& model, PairNet& net) {
      EXPECT_THAT(model.RunStep([&] {
        const torch::Tensor loss = PairLoss(net, 1, rank);
        Replace(net, 1, how, torch::ones({5, 2}));
        loss.backward();
        return model.Step();
      }),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           HasSubstr("'pair.second' was changed between forward and backward")));
    });
  }
}

// What is read and written for it is no operation of the other ranks.
TEST_F(ReplacedTest, GradientThatOnlyOneRankSetsIsAnErrorOnEveryRankAndTrainingGoesOn) {
  for (const bool clips : {false, true}) {
    for (const int steps_before : {0, 2}) {
      WithNet(2, [&](int rank, ShardedModel& model, PairNet& net) {
        for (int step = 0; step < steps_before; ++step) ASSERT_OK(TrainStep(rank, model, net));
        EXPECT_THAT(model.RunStep([&]() -> absl::Status {
          PairLoss(net, 1, rank).backward();
          if (rank == 1) net.pair->weights[1].mutable_grad() = torch::full({5, 2}, 2.0);
          if (clips) {
            const absl::Status clipped = model.ClipGradNorm(1.0, 2.0, {}).status();
            if (!clipped.ok()) return clipped;
          }
          return model.Step();
        }),
                    StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1")));
        ASSERT_OK(TrainStep(rank, model, net));
      });
    }
  }
}

TEST_F(ReplacedTest, ParameterThatOnlyOneRankReplacesIsAnErrorOnEveryRank) {
  for (const bool before_forward : {false, true}) {
    for (const int steps_before : {0, 2}) {
      WithNet(2, [&](int rank, ShardedModel& model, PairNet& net) {
        for (int step = 0; step < steps_before; ++step) ASSERT_OK(TrainStep(rank, model, net));
        const auto replace = [&] {
          if (rank == 1) net.scale.set_data(torch::full({2}, 3.0));
        };
        EXPECT_THAT(model.RunStep([&] {
          if (before_forward) replace();
          PairLoss(net, 1, rank).backward();
          if (!before_forward) replace();
          return model.Step();
        }),
                    StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1")));
      });
    }
  }
}

}  // namespace
}  // namespace tessera
