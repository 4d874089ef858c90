// What a sharded model computes in, and that it trains as the plain module does that casts at the
// same places. Ranks are threads of this process.
#include <cmath>

#include "base/status_matchers.h"
#include "client/torch/mixed_precision_fixture.h"
#include "client/torch/precision_rules.h"
#include "gtest/gtest.h"
#include "tessera/gradient_scaler.h"
#include "tessera/torch/units.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using TrainCase = std::tuple<DType, bool, Strategy, DType>;
class MixedPrecisionTrainingTest : public MixedPrecisionTest,
                                   public testing::WithParamInterface<TrainCase> {};

// MP-1 (not offload), MP-2, MP-3, MP-5, MP-9 (not offload), MP-18, CORE-3, F2MP-1.
TEST_P(MixedPrecisionTrainingTest, TrainsToTheBitsOfTheUnshardedModelThatCastsAtTheSamePlaces) {
  const auto [dtype, reduces_in_fp32, strategy, original] = GetParam();
  const torch::ScalarType low = ScalarTypeOf(dtype);
  const auto expected =
      UnshardedRun(*WithParametersIn(original, Make<MixedNet>()), 2, 4,
                   {low, torch::kBFloat16, reduces_in_fp32 ? torch::kFloat32 : low});
  ForEachRank(2, [&, dtype = dtype, reduces_in_fp32 = reduces_in_fp32, strategy = strategy,
                  original = original](int rank) {
    auto model = WithParametersIn(original, Make<MixedNet>());
    MixedPrecision precision;
    precision.param_dtype = dtype;
    if (reduces_in_fp32) precision.reduce_dtype = DType::kFp32;
    precision.buffer_dtype = DType::kBf16;
    SessionOptions options = OptionsFor(rank, 2);
    options.config.strategy = strategy;
    ASSERT_OK_AND_ASSIGN(auto sharded,
                         ShardedModel::Attach(model, options, AlwaysWrap(), With(precision)));
    while (sharded->next_step() <= 4) {
      ASSERT_OK(sharded->RunStep([&] {
        torch::Tensor x = Batch(rank, sharded->next_step()).requires_grad_();
        const torch::Tensor output = model->forward(x);
        EXPECT_EQ(output.scalar_type(), low);
        Loss(output).backward();
        EXPECT_EQ(x.grad().scalar_type(), torch::kFloat32) << "as the input";
        return sharded->Step();
      }));
    }
    EXPECT_EQ(model->seen, low);
    EXPECT_THAT(model->second->seen, ElementsAre(low, low, torch::kBFloat16));
    EXPECT_EQ(model->second->count.item<int64_t>(), 4) << "integers are not cast";
    const auto trained = MasterParameters(sharded->session());
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(trained[i], expected[i])) << i;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes, MixedPrecisionTrainingTest,
    testing::Combine(testing::Values(DType::kBf16, DType::kFp16), testing::Bool(),
                     testing::Values(Strategy::kFullShard, Strategy::kShardGradOp),
                     testing::Values(DType::kFp32, DType::kFp64)));

// The scale is a power of two, so it leaves no trace but in overflows. SGS-4, MP-6 (fp16, not
// offload)
TEST_F(MixedPrecisionTest, LossScalingInFp16TrainsAsTheUnscaledModelOnceTheScaleFits) {
  const auto expected =
      UnshardedRun(*Make<MixedNet>(), 2, 3, {torch::kFloat16, torch::kFloat64, torch::kFloat16});
  ForEachRank(2, [&](int rank) {
    auto model = Make<MixedNet>();
    MixedPrecision precision;
    precision.param_dtype = DType::kFp16;
    ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, OptionsFor(rank, 2),
                                                            AlwaysWrap(), With(precision)));
    GradientScaler::Options options;
    options.initial_scale = 1 << 20;  // Overflows fp16 at first.
    GradientScaler scaler(options);
    int skipped = 0;
    while (sharded->next_step() <= 3) {
      ASSERT_OK(sharded->RunStep([&]() -> absl::Status {
        (Loss(model->forward(Batch(rank, sharded->next_step()))) * scaler.scale()).backward();
        const auto result = sharded->StepWithResult(scaler.Scaled({}));
        if (!result.ok()) return result.status();
        skipped += result->skipped;
        scaler.Update(*result);
        return absl::OkStatus();
      }));
    }
    EXPECT_GT(skipped, 0);
    EXPECT_EQ(scaler.scale(), std::ldexp(options.initial_scale, -skipped));
    const auto trained = MasterParameters(sharded->session());
    for (int i = 0; i < 3; ++i) {
      EXPECT_LT((trained[i] - expected[i]).abs().max().item<float>(), 2e-3f) << i;
    }
  });
}

// --- Arguments ---

using Nested = std::pair<torch::Tensor, std::vector<torch::Tensor>>;

struct TakesManyImpl : torch::nn::Module {
  TakesManyImpl() { weight = register_parameter("weight", torch::ones({2})); }
  torch::Tensor forward(const Nested& nested, std::optional<torch::Tensor> none,
                        torch::Tensor tokens, int& calls) {
    for (const torch::Tensor& t : {nested.first, nested.second[0], nested.second[1], tokens}) {
      seen.push_back(t.scalar_type());
    }
    EXPECT_FALSE(none.has_value());
    ++calls;
    return nested.first * weight;
  }
  torch::Tensor weight;
  std::vector<torch::ScalarType> seen;
};

TEST_F(MixedPrecisionTest, FloatingPointTensorsAnywhereInTheArgumentsAreCastAndNothingElse) {
  // F2MP-5 (inputs), MP-10 (integer inputs)
  auto model = Make<Sharded<TakesManyImpl>>();
  MixedPrecision precision;
  precision.param_dtype = DType::kBf16;
  ASSERT_OK_AND_ASSIGN(auto sharded,
                       ShardedModel::Attach(model, OptionsFor(0), AlwaysWrap(), With(precision)));
  const Nested nested = {torch::ones({2}),
                         {torch::ones({2}, torch::kFloat64), torch::ones({2}, torch::kInt64)}};
  int calls = 0;
  model->forward(nested, std::nullopt, torch::ones({2}, torch::kInt32), calls);
  EXPECT_THAT(model->seen,
              ElementsAre(torch::kBFloat16, torch::kBFloat16, torch::kInt64, torch::kInt32));
  EXPECT_EQ(nested.first.scalar_type(), torch::kFloat32) << "the caller's stays as it is";
  EXPECT_EQ(calls, 1) << "what holds no tensor is passed on";
}

struct LinearsImpl : torch::nn::Module {
  explicit LinearsImpl(bool makes_inputs) : makes_inputs(makes_inputs) {
    first = register_module("first", std::make_shared<Sharded<torch::nn::LinearImpl>>(4, 4));
    second = register_module("second", std::make_shared<Sharded<torch::nn::LinearImpl>>(4, 4));
    scale = register_parameter("scale", torch::ones({4}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    seen = x.scalar_type();
    const torch::Tensor between = first->forward(x);
    return second->forward(makes_inputs ? torch::ones({3, 4}) : between * scale);
  }
  const bool makes_inputs;
  torch::Tensor scale;
  std::shared_ptr<Sharded<torch::nn::LinearImpl>> first, second;
  torch::ScalarType seen = torch::kFloat32;
};

MixedPrecision OneUnit(const std::string& name, DType dtype, bool casts) {
  MixedPrecision precision;
  precision.per_unit = [=](const WrapCandidate& unit, const UnitPrecision& of_model) {
    if (unit.name != name) return of_model;
    UnitPrecision own;
    own.param_dtype = dtype;
    own.cast_forward_inputs = casts;
    return own;
  };
  return precision;
}

TEST_F(MixedPrecisionTest, UnitOfLowPrecisionCastsItsArgumentsOnlyIfItSaysSo) {
  // MP-20, MP-22, MP-23
  const torch::Tensor x = torch::ones({3, 4});
  for (const bool casts : {true, false}) {
    for (const char* name : {"second", "first"}) {
      SCOPED_TRACE(testing::Message() << name << casts);
      auto model = Make<Sharded<LinearsImpl>>(false);
      SessionOptions options = OptionsFor(0);
      options.job_id = std::string(name) + (casts ? "1" : "0");
      ASSERT_OK_AND_ASSIGN(auto sharded,
                           ShardedModel::Attach(model, options, AlwaysWrap(),
                                                With(OneUnit(name, DType::kBf16, casts))));
      // Of the first one the result stays in low precision, which the second one does not cast.
      if (casts && std::string(name) == "second") {
        EXPECT_EQ(model->forward(x).scalar_type(), torch::kBFloat16);
        EXPECT_EQ(model->seen, torch::kFloat32);
      } else {
        const absl::Status status = sharded->RunStep([&] {
          model->second->forward(model->first->forward(x));
          return absl::OkStatus();
        });
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnknown, HasSubstr("type")));
      }
    }
    cluster_.reset();
    SetUp();
  }
}

TEST_F(MixedPrecisionTest, TensorMadeInsideForwardIsNotCastForAChildByDefault) {  // MP-24
  MixedPrecision precision;
  precision.param_dtype = DType::kBf16;
  for (const bool casts : {false, true}) {
    precision.cast_forward_inputs = casts;
    auto model = Make<Sharded<LinearsImpl>>(true);
    SessionOptions options = OptionsFor(0);
    options.job_id = casts ? "casts" : "casts-not";
    ASSERT_OK_AND_ASSIGN(auto sharded,
                         ShardedModel::Attach(model, options, AlwaysWrap(), With(precision)));
    const absl::Status status = sharded->RunStep([&] {
      model->forward(torch::ones({3, 4}));
      return absl::OkStatus();
    });
    EXPECT_EQ(status.ok(), casts) << status;
  }
}

// --- Precedence ---

TEST(MergePrecisionTest, ReduceDTypeIsItsOwnElseThatOfParametersElseTheJobs) {  // MP-3, FP16-2
  const auto reduce_of = [](std::optional<DType> param, std::optional<DType> reduce, DType job) {
    MixedPrecision precision;
    precision.param_dtype = param;
    precision.reduce_dtype = reduce;
    JobConfig config;
    config.reduce_dtype = job;
    MergePrecision(precision, &config);
    EXPECT_EQ(config.compute_dtype, param.value_or(DType::kFp32));
    return config.reduce_dtype;
  };
  EXPECT_EQ(reduce_of(DType::kFp16, DType::kFp32, DType::kBf16), DType::kFp32);
  EXPECT_EQ(reduce_of(DType::kFp16, std::nullopt, DType::kBf16), DType::kFp16);
  EXPECT_EQ(reduce_of(std::nullopt, std::nullopt, DType::kBf16), DType::kBf16);
}

}  // namespace
}  // namespace tessera
