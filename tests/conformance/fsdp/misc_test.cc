// Small areas: order of units, apply, meta parameters, replaced dtypes, sparse gradients, chunks of
// a loss, memory.
// (PyTorch: test_fsdp_traversal, _apply, _meta, _misc, _param_mutation, _sharded_grad_scaler,
// _mixed_precision, _memory, _exec_order, test_fully_shard_training)
#include <torch/nn/modules/embedding.h>
#include <unistd.h>

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tessera/initializer.h"
#include "tests/conformance/fsdp/harness.h"
#include "tests/conformance/fsdp/models.h"
#include "tests/testing/process_view.h"

namespace tessera::conformance {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kWorldSize = 2;

class MiscTest : public ConformanceTest {
 protected:
  // Attaches a model on each rank and runs `body`.
  template <typename M>
  void OnEachRank(const SessionOptions& options, const std::function<std::shared_ptr<M>()>& make,
                  const std::function<void(M&, ShardedModel&, int rank)>& body,
                  const AttachOptions& attach = {}, const WrapPolicy& policy = AlwaysWrap()) {
    ForEachRank(options.config.world_size, [&](int rank) {
      SessionOptions own = options;
      own.rank = rank;
      std::shared_ptr<M> model = make();
      ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own, policy, attach));
      body(*model, *sharded, rank);
    });
  }
};

TEST_F(MiscTest, UnitsAreInTheOrderOfTheWalkParentsFirst) {  // TRAV-1
  OnEachRank<Nested>(
      Options(kWorldSize), [] { return std::make_shared<Nested>(); },
      [](Nested&, ShardedModel& sharded, int) {
        std::vector<std::string> names;
        for (const UnitLayout& unit : sharded.session().layout().units)
          names.push_back(unit.flat.unit_name());
        EXPECT_THAT(names, ElementsAre("root", "1", "1.0", "2"));
      },
      {}, NestedUnits());
}

TEST_F(MiscTest, ApplyOnATiedTransformerChangesWhatItMeansAndNothingElse) {  // APP-2
  OnEachRank<Transformer>(
      Options(kWorldSize), [] { return std::make_shared<Transformer>(); },
      [&](Transformer& model, ShardedModel& sharded, int) {
        const auto fill = [](torch::nn::Module& module) {
          auto* linear = module.as<torch::nn::LinearImpl>();
          if (linear == nullptr) return;
          torch::NoGradGuard no_grad;
          linear->weight.fill_(1);
          linear->bias.fill_(1);
        };
        Transformer plain;
        static_cast<torch::nn::Module&>(plain).apply(fill);
        model.apply(fill);
        const Tensors whole = WholeParameters(&sharded, model);
        ExpectNear(whole, CopyOf(plain), 0);
        EXPECT_TRUE(torch::equal(whole.at("decoder1.down.weight"), torch::ones({16, 8})));
      });
}

// META-6, and MISC-15: an ignored module stays on the meta device.
TEST_F(MiscTest, MetaParametersMayBeInLowPrecisionAndIgnoredOnesStayMeta) {
  AttachOptions attach;
  attach.initialize_meta = InitializedBy(Initializer::Normal(0, 0.02), 3);
  attach.precision.reduce_dtype = DType::kFp16;
  const SessionOptions options = Options(kWorldSize);
  ForEachRank(kWorldSize, [&](int rank) {
    SessionOptions own = options;
    own.rank = rank;
    auto model = std::make_shared<Experts>();
    MoveToMeta(*model);
    AttachOptions with = attach;
    with.ignored.modules = {model->expert.ptr()};
    ASSERT_OK_AND_ASSIGN(
        auto sharded, ShardedModel::Attach(model, own, WrapModules<torch::nn::LinearImpl>(), with));
    EXPECT_TRUE(model->expert->weight.is_meta());
    EXPECT_FALSE(model->head->weight.is_meta());
    ASSERT_OK(sharded->RunStep([&] {
      model->shared->forward(Samples(1, rank, {3, 8})).sum().backward();
      return sharded->Step();
    }));
    EXPECT_EQ(Count(Operations(own.job_id, rank, 1), "reduce shared 256"), 1)
        << "64 + 8 elements of fp16, in two slices of 64";
  });
}

// PMUT-1, MISC-24 (no Module::__setattr__): a parameter keeps the dtype of the job.
TEST_F(MiscTest, ModelThatIsTurnedToHalfAfterAStepGoesOnWithTheRoundedValues) {
  OnEachRank<Nested>(
      Options(kWorldSize), [] { return std::make_shared<Nested>(); },
      [&](Nested& model, ShardedModel& sharded, int rank) {
        const auto train = [&](int64_t step) {
          return sharded.RunStep([&] {
            LossOf(model, step, rank).backward();
            return sharded.Step(0.0);
          });
        };
        ASSERT_OK(train(1));
        Tensors expected = WholeParameters(&sharded, model);
        for (auto& [name, value] : expected) value = value.to(torch::kHalf).to(torch::kFloat32);
        ASSERT_OK(sharded.SummonFullParams({}, [&] {
          model.to(torch::kHalf);
          return absl::OkStatus();
        }));
        ASSERT_OK(train(2));
        EXPECT_EQ(model.in->weight.scalar_type(), torch::kFloat32);
        ExpectNear(WholeParameters(&sharded, model), expected, 0);
      },
      {}, NestedUnits());
}

// ORIG-1, ORIG-3: weights, biases and the rest with numbers of their own; then biases frozen.
TEST_F(MiscTest, ParamGroupsTrainAsThoseOfThePlainOptimizer) {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    for (const bool frozen_biases : {false, true}) {
      Training<Transformer> training;
      training.make = [frozen_biases] {
        auto model = std::make_shared<Transformer>();
        for (auto& item : model->named_parameters()) {
          if (frozen_biases && absl::EndsWith(item.key(), "bias"))
            item.value().requires_grad_(false);
        }
        return model;
      };
      training.tolerance = 2e-5;
      SessionOptions options = Options(kWorldSize);
      options.config.strategy = strategy;
      options.config.optimizer = OptimizerKind::kAdamW;
      options.config.groups[0].epsilon = 1e-3;  // As in EveryStrategyTest.
      options.config.groups.resize(3, options.config.groups[0]);
      for (const auto& item : training.make()->named_parameters()) {
        if (absl::EndsWith(item.key(), "weight"))
          options.config.groups[1].parameter_names.push_back(item.key());
        if (absl::EndsWith(item.key(), "bias"))
          options.config.groups[2].parameter_names.push_back(item.key());
      }
      options.config.groups[1].learning_rate = 0.01;
      options.config.groups[1].weight_decay = 0.1;
      options.config.groups[2].learning_rate = 0.003;
      const Outcome expected = TrainPlain(training, options.config);
      ForEachRank(kWorldSize, [&](int rank) {
        SessionOptions own = options;
        own.rank = rank;
        TrainSharded(training, own, expected);
      });
    }
  }
}

// ORIG-4, A6-7: of the units that a step leaves out, weights have no gradient and biases one of
// zero, which Adam's moments tell apart.
TEST_F(MiscTest, NoGradientAndAGradientOfZeroAreToldApartByParameter) {
  constexpr int kSteps = 5;
  const auto loss_of = [](Nested& model, int64_t step, int rank) {
    if (step % 2 == 1) return LossOf(model, step, rank);
    return model.inner->forward(Samples(step, rank, {4, 4})).square().mean();
  };
  const auto zero_biases = [](torch::nn::Module& module, const torch::nn::Module& shapes) {
    for (auto& item : module.named_parameters()) {
      const bool is_bias = absl::EndsWith(item.key(), "bias");
      const bool used = absl::StartsWith(item.key(), "1.");
      if (is_bias && !used)
        item.value().mutable_grad() = torch::zeros_like(shapes.named_parameters()[item.key()]);
    }
  };
  SessionOptions options = Options(kWorldSize);
  options.config.optimizer = OptimizerKind::kAdam;
  options.config.groups[0].learning_rate = 0.01;
  const Nested shapes;
  Nested plain;
  const auto optimizer = PlainOptimizer(plain, options.config);
  for (int64_t step = 1; step <= kSteps; ++step) {
    ForgetGradients(plain);
    for (int rank = 0; rank < kWorldSize; ++rank)
      (loss_of(plain, step, rank) / kWorldSize).backward();
    if (step % 2 == 0) zero_biases(plain, shapes);
    optimizer->step();
  }
  OnEachRank<Nested>(
      options, [] { return std::make_shared<Nested>(); },
      [&](Nested& model, ShardedModel& sharded, int rank) {
        for (int64_t step = 1; step <= kSteps; ++step) {
          ASSERT_OK(sharded.RunStep([&] {
            loss_of(model, step, rank).backward();
            if (step % 2 == 0) zero_biases(model, shapes);
            return sharded.Step();
          }));
        }
        ExpectNear(WholeParameters(&sharded, model), CopyOf(plain), 1e-5);
      },
      {}, NestedUnits());
}

// SGS-2: rows that come twice are summed in fp32; that fp16 cannot hold the sum is seen.
TEST_F(MiscTest, SparseGradientsOfAnEmbeddingAreThoseOfADenseOne) {
  struct ModelImpl : torch::nn::Module {
    explicit ModelImpl(bool sparse)
        : embedding(register_module(
              "embedding",
              torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 3).sparse(sparse)))) {
      FillParameters(*this);
    }
    torch::Tensor forward(torch::Tensor rows) { return embedding->forward(rows); }
    torch::nn::Embedding embedding{nullptr};
  };
  using Model = Sharded<ModelImpl>;
  Tensors parameters[2];
  for (const bool sparse : {false, true}) {
    SessionOptions options = Options(kWorldSize);
    options.config.reduce_dtype = DType::kFp16;
    OnEachRank<Model>(
        options, [sparse] { return std::make_shared<Model>(sparse); },
        [&](Model& model, ShardedModel& sharded, int rank) {
          const auto step = [&](double factor) {
            StepResult result;
            EXPECT_OK(sharded.RunStep([&]() -> absl::Status {
              (model.forward(torch::tensor({1, 4, 1})).sum() * factor).backward();
              StepOptions skip;
              skip.skip_non_finite = true;
              const auto taken = sharded.StepWithResult(skip);
              if (taken.ok()) result = *taken;
              return taken.status();
            }));
            return result;
          };
          EXPECT_FALSE(step(2).skipped);
          EXPECT_TRUE(step(rank == 0 ? 40000 : 1).skipped) << "twice 40000 is above 65504";
          EXPECT_FALSE(step(3).skipped);
          const Tensors whole = WholeParameters(&sharded, model);
          if (rank == 0) parameters[sparse] = whole;
        });
  }
  ExpectNear(parameters[1], parameters[0], 0);
}

// MP-25, MISC-2: an average of the weights, kept next to the model, after every step.
TEST_F(MiscTest, AverageOfTheWeightsFollowsTheStepsInEveryStrategy) {
  const auto average = [](Nested& ema, const Nested& model) {
    torch::NoGradGuard no_grad;
    const auto from = model.named_parameters();
    for (auto& item : ema.named_parameters()) item.value().mul_(0.9).add_(from[item.key()], 0.1);
  };
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    SessionOptions options = Options(kWorldSize);
    options.config.strategy = strategy;
    Nested plain, plain_ema;
    const auto optimizer = PlainOptimizer(plain, options.config);
    std::vector<torch::Tensor> outputs;
    const torch::Tensor x = Samples(7, 0, {4, 8});
    for (int64_t step = 1; step <= 3; ++step) {
      ForgetGradients(plain);
      for (int rank = 0; rank < kWorldSize; ++rank)
        (LossOf(plain, step, rank) / kWorldSize).backward();
      optimizer->step();
      average(plain_ema, plain);
      outputs.push_back(plain_ema.forward(x).detach());
    }
    EXPECT_GT((outputs[1] - outputs[0]).abs().max().item<float>(), 1e-4f);
    OnEachRank<Nested>(
        options, [] { return std::make_shared<Nested>(); },
        [&](Nested& model, ShardedModel& sharded, int rank) {
          Nested ema;
          for (int64_t step = 1; step <= 3; ++step) {
            ASSERT_OK(sharded.RunStep([&] {
              LossOf(model, step, rank).backward();
              return sharded.Step();
            }));
            SummonOptions summon;
            summon.writeback = false;
            ASSERT_OK(sharded.SummonFullParams(summon, [&] {
              average(ema, model);
              return absl::OkStatus();
            }));
            EXPECT_TRUE(torch::allclose(ema.forward(x), outputs[step - 1], 1e-5, 1e-6));
          }
        },
        {}, NestedUnits());
  }
}

// MP-21: a unit that casts no inputs gets those that the user's own forward cast.
TEST_F(MiscTest, UserMayCastForALowPrecisionUnitThatDoesNot) {
  struct ModelImpl : torch::nn::Module {
    ModelImpl()
        : in(register_module("in", torch::nn::Linear(4, 4))),
          low(register_module("low", std::make_shared<LinearUnit>(4, 4))) {
      FillParameters(*this);
    }
    torch::Tensor forward(torch::Tensor x) {
      EXPECT_EQ(x.scalar_type(), torch::kFloat32);
      x = in->forward(x);
      EXPECT_EQ(x.scalar_type(), torch::kFloat32);
      return low->forward(x.to(torch::kBFloat16));
    }
    torch::nn::Linear in{nullptr};
    std::shared_ptr<LinearUnit> low;
  };
  using Model = Sharded<ModelImpl>;
  AttachOptions attach;
  attach.precision.per_unit = [](const WrapCandidate& unit, const UnitPrecision& of_model) {
    UnitPrecision precision = of_model;
    if (unit.name == "low") precision.param_dtype = DType::kBf16;
    return precision;
  };
  OnEachRank<Model>(
      Options(kWorldSize), [] { return std::make_shared<Model>(); },
      [](Model& model, ShardedModel& sharded, int rank) {
        ASSERT_OK(sharded.RunStep([&] {
          const torch::Tensor y = model.forward(Samples(1, rank, {3, 4}));
          EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
          y.sum().backward();
          return sharded.Step();
        }));
      },
      attach);
}

// F2TR-10: the head is used, and goes backward, once for each chunk; then the trunk does.
TEST_F(MiscTest, LossInChunksTrainsAsTheWholeOne) {
  struct ModelImpl : torch::nn::Module {
    ModelImpl()
        : trunk(register_module("trunk", std::make_shared<Sharded<MlpImpl>>(4))),
          head(register_module("head", std::make_shared<LinearUnit>(4, 4))) {
      scale = register_parameter("scale", torch::ones({4}), /*requires_grad=*/false);
      FillParameters(*this);
    }
    torch::Tensor forward(torch::Tensor x) { return head->forward(trunk->forward(x)); }
    std::shared_ptr<Sharded<MlpImpl>> trunk;
    std::shared_ptr<LinearUnit> head;
    torch::Tensor scale;
  };
  using Model = Sharded<ModelImpl>;
  Training<Model> training;
  training.make = [] { return std::make_shared<Model>(); };
  training.loss = [](Model& model, int64_t step, int rank) {
    return model.forward(Samples(step, rank, {4, 4})).square().mean();
  };
  const Outcome expected = TrainPlain(training, Options(kWorldSize).config);
  for (const bool grouped : {false, true}) {
    SessionOptions options = Options(kWorldSize);
    options.config.gradient_slots = 0;
    OnEachRank<Model>(options, training.make, [&](Model& model, ShardedModel& sharded, int rank) {
      for (int64_t step = 1; step <= training.steps; ++step) {
        ASSERT_OK(sharded.RunStep([&] {
          const torch::Tensor x = model.trunk->forward(Samples(step, rank, {4, 4}));
          torch::Tensor features = x.detach().requires_grad_();
          for (int chunk = 0; chunk < 4; ++chunk) {
            std::optional<ShardedModel::NoSync> no_sync;
            if (grouped && chunk < 3) no_sync.emplace(&sharded);
            (model.head->forward(features[chunk].unsqueeze(0)).square().sum() / 16).backward();
          }
          x.backward(features.grad());
          return sharded.Step();
        }));
      }
      ExpectNear(WholeParameters(&sharded, model), expected.parameters, 3e-6);
      EXPECT_EQ(Count(Operations(options.job_id, rank, 2), "reduce head"), grouped ? 1 : 4);
    });
  }
}

// F2TR-18: the forward of a micro-batch before the backward of the one before it.
TEST_F(MiscTest, OneForwardOneBackwardScheduleTrainsAsOneBatch) {
  Training<MlpStack> training;
  training.make = [] { return std::make_shared<MlpStack>(4); };
  training.loss = [](MlpStack& model, int64_t step, int rank) {
    return LossOf(model, step, rank) + LossOf(model, step + 20, rank) +
           LossOf(model, step + 40, rank);
  };
  SessionOptions options = Options(kWorldSize);
  options.config.gradient_slots = 0;
  const Outcome expected = TrainPlain(training, options.config);
  OnEachRank<MlpStack>(options, training.make,
                       [&](MlpStack& model, ShardedModel& sharded, int rank) {
                         for (int64_t step = 1; step <= training.steps; ++step) {
                           ASSERT_OK(sharded.RunStep([&] {
                             const torch::Tensor first = LossOf(model, step, rank);
                             const torch::Tensor second = LossOf(model, step + 20, rank);
                             std::optional<ShardedModel::NoSync> no_sync(std::in_place, &sharded);
                             first.backward();
                             const torch::Tensor third = LossOf(model, step + 40, rank);
                             second.backward();
                             no_sync.reset();
                             third.backward();
                             return sharded.Step();
                           }));
                         }
                         ExpectNear(WholeParameters(&sharded, model), expected.parameters, 5e-6);
                         EXPECT_EQ(Count(Operations(options.job_id, rank, 2), "reduce"), 4);
                       });
}

// ORD-1: units of one size, so that reductions of the one and the other would fit; in a first step
// and in a later one.
TEST_F(MiscTest, RanksThatTakeDifferentPathsOfOneSizeAreToldBoth) {
  OnEachRank<MlpStack>(
      Options(kWorldSize), [] { return std::make_shared<MlpStack>(4); },
      [](MlpStack& model, ShardedModel& sharded, int rank) {
        for (const bool deviates : {true, false, true, false, false}) {
          const absl::Status status = sharded.RunStep([&] {
            auto& mlp = model.mlps[deviates && rank == 1 ? 2 : 1];
            mlp->forward(Samples(1, rank, {2, 4})).sum().backward();
            return sharded.Step();
          });
          if (deviates) {
            EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                         AllOf(HasSubstr("mlp1"), HasSubstr("mlp2"))));
          } else {
            EXPECT_OK(status);
          }
        }
        EXPECT_EQ(sharded.next_step(), 4);
      });
}

// MEM-2, MEM-3, F2MEM-1, F2MEM-3: all memory of a job is there before the first step, to the byte,
// and no step adds any. Width 16: a unit has 2128 elements, a rank's slice of it 1088; the head 272
// and 160.
TEST_F(MiscTest, MemoryOfAJobIsKnownBeforeTheFirstStepAndNoStepAddsAny) {
  const SessionOptions options = Options(kWorldSize);
  const auto sizes = [&] {
    std::map<std::string, int64_t> bytes;
    for (const auto& [name, content] : testing_support::RegionsOf(getpid(), options.job_id))
      bytes[name] = static_cast<int64_t>(content.size());
    return bytes;
  };
  OnEachRank<MlpStack>(
      options, [] { return std::make_shared<MlpStack>(16); },
      [&](MlpStack& model, ShardedModel& sharded, int rank) {
        const std::map<std::string, int64_t> before = sizes();
        constexpr int64_t kPage = 4096;
        EXPECT_EQ(before.at("parameters"), kPage + 3 * 3 * kPage) << "pages of 1280 and 8704 bytes";
        EXPECT_EQ(before.at(absl::StrCat(rank, "/state")), 7 * 4 * kPage) << "of 13696 bytes";
        EXPECT_EQ(before.at(absl::StrCat(rank, "/gradients")), 3 * 3 * kPage + 14)
            << "three slots of 8704 bytes, a byte for each parameter";
        int64_t resident_before = 0;
        for (int64_t step = 1; step <= 4; ++step) {
          ASSERT_OK(sharded.RunStep([&] {
            LossOf(model, step, rank).backward();
            return sharded.Step();
          }));
          EXPECT_EQ(sizes(), before) << "step " << step;
          // Both versions of the state have been written after the second step.
          const int64_t resident = testing_support::ResidentBytesOf(
              getpid(), options.job_id)[absl::StrCat(rank, "/state")];
          if (step > 2) {
            EXPECT_EQ(resident, resident_before) << "step " << step;
          }
          resident_before = resident;
        }
      });
}

}  // namespace
}  // namespace tessera::conformance
