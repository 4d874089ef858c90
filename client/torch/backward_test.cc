// Backward outside the usual step: what it refuses, and what an end before the step leaves.
#include <torch/csrc/autograd/engine.h>

#include <functional>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"
#include "client/torch/torch_status.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class BackwardTest : public TorchCluster {
 protected:
  static absl::Status TrainStep(Trainer& trainer) {
    return trainer.model->RunStep([&] {
      LossOf(*trainer.net, trainer.model->next_step(), trainer.rank).backward();
      return trainer.model->Step();
    });
  }
  // After two steps on two ranks, `between` them.
  std::map<std::string, torch::Tensor> TrainTwoSteps(const std::string& job,
                                                     const std::function<void(Trainer&)>& between) {
    std::map<std::string, torch::Tensor> parameters;
    OnEachRank(
        2,
        [&](Trainer& trainer) {
          EXPECT_OK(TrainStep(trainer));
          between(trainer);
          EXPECT_OK(TrainStep(trainer));
          const auto whole = WholeParameters(trainer);
          if (trainer.rank == 0) parameters = whole;
        },
        [&](SessionOptions* options) { options->job_id = job; });
    return parameters;
  }
  void ExpectChangesNothing(const std::function<void(Trainer&)>& between) {
    const auto expected = TrainTwoSteps("plain", [](Trainer&) {});
    for (const auto& [name, values] : TrainTwoSteps("with", between))
      EXPECT_TRUE(torch::equal(values, expected.at(name))) << name;
  }
};

TEST_F(BackwardTest, GradientOfAParameterThatNeedsOneItselfIsRefusedByName) {
  ExpectChangesNothing([](Trainer& trainer) {
    EXPECT_THAT(trainer.model->RunStep([&] {
      LossOf(*trainer.net, 1, trainer.rank).backward({}, true, /*create_graph=*/true);
      return trainer.model->Step();
    }),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("parameter 'out."), HasSubstr("torch::autograd::grad"))));
  });
}

TEST_F(BackwardTest, ProcessWithTheEngineOfAnotherLibraryCannotAttach) {
  using torch::autograd::Engine;
  class Other : public Engine {
   public:
    static Engine& Get() {
      static auto* const engine = new Other;
      return *engine;
    }
  };
  torch::autograd::set_default_engine_stub(&Other::Get);
  const auto refused = ShardedModel::Attach(MakeNet(), OptionsFor(0, 1));
  torch::autograd::set_default_engine_stub(&Engine::get_base_engine);
  EXPECT_THAT(refused.status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("another library's")));
}

TEST_F(BackwardTest, GraphFromBeforeAStepIsRefusedAsAPlainModulesIs) {
  OnEachRank(2, [](Trainer& trainer) {
    const torch::Tensor loss = LossOf(*trainer.net, 1, trainer.rank);
    EXPECT_OK(TrainStep(trainer));
    EXPECT_THAT(
        trainer.model->RunStep([&] {
          loss.backward();
          return trainer.model->Step();
        }),
        StatusIs(absl::StatusCode::kUnknown, HasSubstr("modified by an inplace operation")));
    EXPECT_OK(TrainStep(trainer));
  });
}

TEST_F(BackwardTest, ParameterThatWasFrozenWhenAttachedIsNamedIfItIsToBeTrainedLater) {
  Trainer trainer = {0, MakeNet(), nullptr};
  trainer.net->first->linear->bias.requires_grad_(false);
  ASSERT_OK_AND_ASSIGN(trainer.model, ShardedModel::Attach(trainer.net, OptionsFor(0, 1)));
  EXPECT_OK(TrainStep(trainer));
  trainer.net->first->linear->bias.requires_grad_(true);
  EXPECT_THAT(TrainStep(trainer), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr("first.linear.bias"),
                                                 HasSubstr("when the job was created"))));
  trainer.net->first->linear->bias.requires_grad_(false);
  EXPECT_OK(TrainStep(trainer));
}

TEST_F(BackwardTest, GradientsOfABodyThatEndsWithoutAStepAreDropped) {
  ExpectChangesNothing([](Trainer& trainer) {
    EXPECT_OK(trainer.model->RunStep([&] {
      LossOf(*trainer.net, 9, trainer.rank).backward();
      return absl::OkStatus();  // As where the loss is not a number.
    }));
    EXPECT_FALSE(trainer.model->session().within_step());
  });
}

TEST_F(BackwardTest, ZeroGradForgetsTheGradientsOfTheModuleAndThoseBelow) {
  ExpectChangesNothing([](Trainer& trainer) {
    LossOf(*trainer.net, 9, trainer.rank).backward();
    EXPECT_TRUE(trainer.model->session().within_step());
    trainer.net->first->zero_grad();
    EXPECT_FALSE(trainer.model->session().reduced(1));
    EXPECT_TRUE(trainer.model->session().reduced(2)) << "another module's";
    trainer.net->zero_grad();
    EXPECT_FALSE(trainer.model->session().within_step());
  });
}

// A generator's step, whose backward goes through the discriminator, and then the discriminator's.
TEST_F(BackwardTest, ZeroGradBetweenTwoLossesLeavesTheGradientsOfTheSecond) {
  const auto step_of = [](bool both) {
    return [both](Trainer& trainer) {
      EXPECT_OK(trainer.model->RunStep([&] {
        if (both) LossOf(*trainer.net, 9, trainer.rank).backward();
        trainer.net->zero_grad();
        LossOf(*trainer.net, 5, trainer.rank).backward();
        return trainer.model->Step();
      }));
    };
  };
  const auto expected = TrainTwoSteps("second", step_of(false));
  for (const auto& [name, values] : TrainTwoSteps("both", step_of(true)))
    EXPECT_TRUE(torch::equal(values, expected.at(name))) << name;
}

// libtorch's users throw what they like.
TEST_F(BackwardTest, ExceptionOfAnyTypeIsEveryRanksErrorWithItsType) {
  ExpectChangesNothing([](Trainer& trainer) {
    const absl::Status status = trainer.model->RunStep([&]() -> absl::Status {
      LossOf(*trainer.net, 9, trainer.rank).backward();
      if (trainer.rank == 1) throw 42;
      return trainer.model->Step();
    });
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnknown, HasSubstr("of type 'int'")));
    EXPECT_FALSE(trainer.model->in_step());
  });
}

TEST_F(BackwardTest, ForwardOnAThreadWhileAnotherIsInTheModelIsRefusedByName) {
  ExpectChangesNothing([](Trainer& trainer) {
    const auto refused_on_a_thread = [&](const std::string& where) {
      std::thread([&] {
        for (const auto& forward :
             std::vector<std::function<void()>>{[&] {
                                                  trainer.net->forward(torch::ones({2, 3}));
                                                },
                                                [&] {
                                                  trainer.net->second->forward(torch::ones({2, 5}));
                                                }}) {
          EXPECT_THAT(CatchTorch([&] {
                        forward();
                        return absl::OkStatus();
                      }),
                      StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("one thread at a time"), HasSubstr(where))));
        }
      }).join();
    };
    EXPECT_OK(trainer.model->RunStep([&] {
      const torch::Tensor y = trainer.net->Call([&](NetImpl& net) {
        refused_on_a_thread("forward");
        return net.in->forward(torch::ones({2, 3}));
      });
      y.register_hook([&](const torch::Tensor&) { refused_on_a_thread("backward"); });
      y.sum().backward();
      return absl::OkStatus();
    }));
  });
}

TEST_F(BackwardTest, ExceptionInBackwardThatTheBodyCatchesLeavesTheNextOneWhole) {
  ExpectChangesNothing([](Trainer& trainer) {
    EXPECT_OK(trainer.model->RunStep([&] {
      const torch::Tensor between = trainer.net->first->forward(torch::ones({2, 5}));
      between.register_hook([](const torch::Tensor&) { throw std::runtime_error("of the test"); });
      EXPECT_ANY_THROW(trainer.net->second->forward(between).sum().backward());
      return absl::OkStatus();
    }));
  });
}

}  // namespace
}  // namespace tessera
