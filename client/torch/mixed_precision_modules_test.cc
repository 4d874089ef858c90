// Mixed precision: buffers, modules that are kept in full precision or ignored, and evaluation.
#include <torch/nn/modules/batchnorm.h>

#include "base/status_matchers.h"
#include "client/torch/mixed_precision_fixture.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// --- Buffers ---

TEST_F(MixedPrecisionTest, BuffersAreCastOnceAndOriginalForSavingAndAfterwards) {  // MP-7, MP-8
  auto model = Make<MixedNet>();
  MixedPrecision precision;
  precision.buffer_dtype = DType::kFp16;
  {
    ASSERT_OK_AND_ASSIGN(auto sharded,
                         ShardedModel::Attach(model, OptionsFor(0), AlwaysWrap(), With(precision)));
    EXPECT_EQ(model->first->shift.scalar_type(), torch::kFloat16);
    model->forward(Batch(0, 1));
    {
      ShardedModel::OriginalBuffers original(sharded.get());
      for (const auto& item : model->named_buffers()) {
        if (!item.value().is_floating_point()) continue;
        EXPECT_EQ(item.value().scalar_type(), torch::kFloat64) << item.key();
        EXPECT_EQ(item.value()[0].item<double>(), static_cast<double>(c10::Half(0.1f)));
      }
    }
    for (const auto& item : model->named_buffers()) {
      EXPECT_EQ(item.value().scalar_type(),
                item.value().is_floating_point() ? torch::kFloat16 : torch::kInt64);
    }
  }
  EXPECT_EQ(model->first->shift.scalar_type(), torch::kFloat64);
}

// --- Modules in full precision ---

struct NormImpl : torch::nn::Module {
  explicit NormImpl(int64_t width) : norm(register_module("norm", torch::nn::BatchNorm1d(width))) {}
  torch::Tensor forward(const torch::Tensor& x) { return norm->forward(x); }
  torch::nn::BatchNorm1d norm;
};

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    fc = register_module("fc", std::make_shared<Sharded<torch::nn::LinearImpl>>(4, 4));
    norm = register_module("norm", std::make_shared<Sharded<NormImpl>>(4));
    scale = register_parameter("scale", torch::ones({4}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor normed = norm->forward(fc->forward(x));
    seen = normed.scalar_type();
    return normed * scale;
  }
  std::shared_ptr<Sharded<torch::nn::LinearImpl>> fc;
  std::shared_ptr<Sharded<NormImpl>> norm;
  torch::Tensor scale;
  torch::ScalarType seen = torch::kFloat32;
};

TEST_F(MixedPrecisionTest, BatchNormIsAUnitInFullPrecisionWhateverThePolicySays) {
  // MP-11 (number of units), MP-13, F2MP-6
  auto model = Make<Sharded<NormedImpl>>();
  MixedPrecision precision;
  precision.param_dtype = precision.buffer_dtype = DType::kBf16;
  const WrapPolicy never = WrapIf([](const WrapCandidate&) { return false; });
  ASSERT_OK_AND_ASSIGN(auto sharded,
                       ShardedModel::Attach(model, OptionsFor(0), never, With(precision)));
  ASSERT_EQ(sharded->session().num_units(), 2);
  EXPECT_FALSE(model->fc->attached());
  EXPECT_EQ(sharded->session().layout().units[1].compute_dtype, DType::kFp32);
  EXPECT_EQ(sharded->session().layout().units[1].reduce_dtype, DType::kFp32);
  ASSERT_OK(sharded->RunStep([&] {
    Loss(model->forward(Batch(0, 1))).backward();
    return sharded->Step();
  }));
  EXPECT_EQ(model->seen, torch::kBFloat16) << "cast back";
  EXPECT_EQ(model->norm->norm->weight.scalar_type(), torch::kFloat32);
  EXPECT_EQ(model->norm->norm->running_mean.scalar_type(), torch::kFloat32);
  EXPECT_NE(model->norm->norm->running_mean.abs().sum().item<float>(), 0.0f);
  EXPECT_EQ(model->fc->weight.scalar_type(), torch::kBFloat16);
}

TEST_F(MixedPrecisionTest, ModuleInFullPrecisionThatCannotBeAUnitIsRefusedByName) {
  struct PlainNorm : torch::nn::Module {
    PlainNorm() {
      norm = register_module("norm", torch::nn::BatchNorm1d(4));
      scale = register_parameter("scale", torch::ones({4}));
    }
    void forward() {}
    torch::nn::BatchNorm1d norm = nullptr;
    torch::Tensor scale;
  };
  auto model = std::make_shared<Sharded<PlainNorm>>();
  MixedPrecision precision;
  precision.param_dtype = DType::kBf16;
  EXPECT_THAT(ShardedModel::Attach(model, OptionsFor(0), AlwaysWrap(), With(precision)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'norm' is kept in full")));
  precision.full_precision = nullptr;
  EXPECT_OK(ShardedModel::Attach(model, OptionsFor(0), AlwaysWrap(), With(precision)));
}

// --- Evaluation ---

TEST_F(MixedPrecisionTest, EvaluationIsInFullPrecisionIfToldTo) {  // MP-14, MP-15, MP-16
  for (const bool full : {false, true}) {
    ForEachRank(2, [&](int rank) {
      auto model = Make<MixedNet>();
      const auto masters =
          UnshardedRun(*model, 2, 1, {torch::kBFloat16, torch::kFloat16, torch::kBFloat16});
      MixedPrecision precision;
      precision.param_dtype = DType::kBf16;
      precision.buffer_dtype = DType::kFp16;
      precision.full_precision_in_eval = full;
      SessionOptions options = OptionsFor(rank, 2);
      options.job_id = full ? "full" : "low";
      ASSERT_OK_AND_ASSIGN(auto sharded,
                           ShardedModel::Attach(model, options, AlwaysWrap(), With(precision)));
      for (int64_t step = 1; step <= 3; ++step) {
        ASSERT_OK(sharded->RunStep([&] {
          const torch::Tensor output = model->forward(Batch(rank, step));
          EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
          EXPECT_EQ(model->first->seen[2], torch::kFloat16);
          Loss(output).backward();
          return sharded->Step();
        }));
        model->eval();
        torch::NoGradGuard no_grad;
        const auto wanted = full ? torch::kFloat32 : torch::kBFloat16;
        const torch::Tensor output = model->forward(Batch(rank, 9));
        EXPECT_EQ(model->seen, wanted);
        EXPECT_THAT(model->first->seen,
                    ElementsAre(wanted, wanted, full ? torch::kFloat64 : torch::kFloat16));
        EXPECT_EQ(model->first->shift.scalar_type(), full ? torch::kFloat64 : torch::kFloat16);
        if (full && step == 1) {
          const float shift = static_cast<float>(c10::Half(0.1f));
          const torch::Tensor exact =
              ((Batch(rank, 9) * masters[1] + shift) * masters[0]) * masters[2] + shift;
          EXPECT_TRUE(torch::equal(output, exact));
        }
        model->train();
      }
    });
    cluster_.reset();
    SetUp();
  }
}

// MP-17, and a training graph that is older than an evaluation.
TEST_F(MixedPrecisionTest, BackwardIsInThePrecisionOfItsForward) {
  auto model = Make<MixedNet>();
  MixedPrecision precision;
  precision.param_dtype = DType::kBf16;
  precision.full_precision_in_eval = true;
  ASSERT_OK_AND_ASSIGN(auto sharded,
                       ShardedModel::Attach(model, OptionsFor(0), AlwaysWrap(), With(precision)));
  const auto expect_step = [&](torch::ScalarType dtype, const std::function<void()>& body) {
    std::vector<torch::Tensor> masters = MasterParameters(sharded->session());
    std::vector<torch::Tensor> p;
    for (const torch::Tensor& m : masters) p.push_back(m.to(dtype).clone().requires_grad_());
    const torch::Tensor shift = torch::full({4}, 0.1, torch::kFloat64).to(dtype);
    const torch::Tensor x = Batch(0, 1).to(dtype);
    Loss(((x * p[1] + shift) * p[0]) * p[2] + shift).backward();
    ASSERT_OK(sharded->RunStep([&] {
      body();
      return sharded->Step();
    }));
    const auto trained = MasterParameters(sharded->session());
    for (int i = 0; i < 3; ++i) {
      const torch::Tensor expected = masters[i] - p[i].grad().to(torch::kFloat32) * 0.125f;
      EXPECT_TRUE(torch::equal(trained[i], expected)) << i;
    }
  };
  const auto forward = [&](bool training) {
    model->train(training);
    return Loss(model->forward(Batch(0, 1)));
  };
  expect_step(torch::kFloat32, [&] { forward(false).backward(); });
  expect_step(torch::kBFloat16, [&] { forward(true).backward(); });
  expect_step(torch::kBFloat16, [&] {
    torch::Tensor loss = forward(true);
    forward(false);
    loss.backward();
  });
}

TEST_F(MixedPrecisionTest, EvaluationAfterAWriteSeesWhatWasWritten) {
  auto model = Make<MixedNet>();
  MixedPrecision precision;
  precision.param_dtype = DType::kBf16;
  precision.full_precision_in_eval = true;
  ASSERT_OK_AND_ASSIGN(auto sharded,
                       ShardedModel::Attach(model, OptionsFor(0), AlwaysWrap(), With(precision)));
  model->eval();
  torch::NoGradGuard no_grad;
  for (const float value : {0.3f, 0.7f}) {
    ASSERT_OK(sharded->SummonFullParams({}, [&] {
      for (torch::Tensor& parameter : model->parameters()) parameter.fill_(value);
      return absl::OkStatus();
    }));
    const torch::Tensor shift = torch::full({4}, 0.1, torch::kFloat64).to(torch::kFloat32);
    const torch::Tensor expected = ((Batch(0, 1) * value + shift) * value) * value + shift;
    EXPECT_TRUE(torch::equal(model->forward(Batch(0, 1)), expected)) << value;
  }
}

TEST_F(MixedPrecisionTest, IgnoredModuleIsLeftAloneInItsOwnDType) {  // MP-19
  struct WithNormImpl : torch::nn::Module {
    WithNormImpl() {
      norm = register_module("norm", torch::nn::BatchNorm1d(4));
      fc = register_module("fc", torch::nn::Linear(4, 4));
      scale = register_parameter("scale", torch::ones({4}));
    }
    torch::Tensor forward(const torch::Tensor& x) { return fc->forward(x * scale); }
    torch::nn::BatchNorm1d norm = nullptr;
    torch::nn::Linear fc = nullptr;
    torch::Tensor scale;
  };
  auto model = Make<Sharded<WithNormImpl>>();
  AttachOptions attach;
  attach.precision.param_dtype = attach.precision.buffer_dtype = DType::kBf16;
  attach.ignored.modules = {model->norm.ptr(), model->fc.ptr()};
  ASSERT_OK_AND_ASSIGN(auto sharded,
                       ShardedModel::Attach(model, OptionsFor(0), AlwaysWrap(), attach));
  EXPECT_EQ(model->norm->running_mean.scalar_type(), torch::kFloat32);
  EXPECT_EQ(model->fc->weight.scalar_type(), torch::kFloat32);
  EXPECT_EQ(model->scale.scalar_type(), torch::kBFloat16);
  EXPECT_THAT(sharded->RunStep([&] {
    model->forward(Batch(0, 1));
    return absl::OkStatus();
  }),
              StatusIs(absl::StatusCode::kUnknown, HasSubstr("dtype")))
      << "its input is not cast in silence";
}
}  // namespace
}  // namespace tessera
