// What a sharded model computes in, and that it trains as the plain module does that casts at the
// same places. Ranks are threads of this process.
#include "client/torch/mixed_precision.h"

#include <cmath>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "base/status_matchers.h"
#include "client/cpp/gradient_scaler.h"
#include "client/cpp/local_cluster.h"
#include "client/torch/precision_rules.h"
#include "client/torch/sharded_model.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Every operation that it uses has fp16 on a CPU too.
struct GateImpl : torch::nn::Module {
  GateImpl() {
    weight = register_parameter("weight", torch::rand({4}) + 0.5);
    shift = register_buffer("shift", torch::full({4}, 0.1, torch::kFloat64));
    count = register_buffer("count", torch::zeros({1}, torch::kInt64));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    seen = {x.scalar_type(), weight.scalar_type(), shift.scalar_type()};
    count += 1;
    return x * weight + shift.to(weight.scalar_type());
  }
  torch::Tensor weight, shift, count;
  std::vector<torch::ScalarType> seen;
};
using Gate = Sharded<GateImpl>;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    scale = register_parameter("scale", torch::rand({4}) + 0.5);
    first = register_module("first", std::make_shared<Gate>());
    second = register_module("second", std::make_shared<Gate>());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    seen = x.scalar_type();
    return second->forward(first->forward(x) * scale);
  }
  torch::Tensor scale;
  std::shared_ptr<Gate> first, second;
  torch::ScalarType seen = torch::kFloat32;
};
using Net = Sharded<NetImpl>;

torch::Tensor Batch(int rank, int64_t step) {
  return torch::sin(torch::arange(12, torch::kFloat32).view({3, 4}) + 5 * rank + 3 * step);
}

torch::Tensor Loss(const torch::Tensor& output) {
  return (output.to(torch::kFloat32) - 0.25).pow(2).sum();
}

AttachOptions With(const MixedPrecision& precision) {
  AttachOptions attach;
  attach.precision = precision;
  return attach;
}

class MixedPrecisionTest : public testing::Test {
 protected:
  void SetUp() override {
    torch::set_num_threads(1);
    LocalCluster::Options options;
    options.num_devices = 2;
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }
  SessionOptions OptionsFor(int rank, int world_size = 1) {
    SessionOptions options;
    options.coordinator_address = cluster_->coordinator_address();
    options.worker_address = cluster_->worker_address();
    options.job_id = "mixed";
    options.rank = rank;
    options.config.world_size = world_size;
    options.config.optimizer = OptimizerKind::kSgd;
    options.config.groups[0].learning_rate = 0.125;
    options.attach_timeout = absl::Seconds(30);
    options.operation_timeout = absl::Seconds(60);
    return options;
  }
  template <typename M, typename... Args>
  std::shared_ptr<M> Make(Args... args) {
    absl::MutexLock lock(&seed_mu_);  // libtorch's seed is the process's.
    torch::manual_seed(3);
    return std::make_shared<M>(args...);
  }
  void ForEachRank(int world_size, const std::function<void(int)>& body) {
    std::vector<std::thread> trainers;
    for (int rank = 0; rank < world_size; ++rank)
      trainers.emplace_back([&body, rank] { body(rank); });
    for (std::thread& trainer : trainers) trainer.join();
  }
  std::unique_ptr<LocalCluster> cluster_;
  absl::Mutex seed_mu_;
};

// The parameters in fp32, through windows in full precision.
std::vector<torch::Tensor> FullParameters(Session& session) {
  std::vector<torch::Tensor> all;
  for (int unit = 0; unit < session.num_units(); ++unit) {
    EXPECT_OK(session.Unshard(unit, Precision::kFull));
    const auto& parameters = session.layout().units[unit].flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      all.push_back(torch::from_blob(const_cast<std::byte*>(session.full_parameter(unit, p)),
                                     parameters[p].spec.shape)
                        .clone());
    }
    EXPECT_OK(session.Reshard(unit));
  }
  return all;
}

struct Dtypes {
  torch::ScalarType parameters, buffers, reduce;
};

// Master parameters in fp32; each rank computes with rounded copies; gradients are rounded to the
// reduce dtype, summed in fp32 in rank order. In the order of FullParameters.
std::vector<torch::Tensor> UnshardedRun(Net& net, int world_size, int64_t steps,
                                        const Dtypes& dtypes) {
  std::vector<torch::Tensor> masters = {net.scale, net.first->weight, net.second->weight};
  for (torch::Tensor& master : masters) master = master.detach().clone();
  for (int64_t step = 1; step <= steps; ++step) {
    std::vector<torch::Tensor> sums(3);
    for (int rank = 0; rank < world_size; ++rank) {
      std::vector<torch::Tensor> p;
      for (const torch::Tensor& master : masters) {
        p.push_back(master.to(dtypes.parameters).clone().requires_grad_());
      }
      const torch::Tensor shift =
          torch::full({4}, 0.1, torch::kFloat64).to(dtypes.buffers).to(dtypes.parameters);
      torch::Tensor x = Batch(rank, step).to(dtypes.parameters);
      x = ((x * p[1] + shift) * p[0]) * p[2] + shift;
      Loss(x).backward();
      for (int i = 0; i < 3; ++i) {
        const torch::Tensor g = p[i].grad().to(dtypes.reduce).to(torch::kFloat32);
        sums[i] = rank == 0 ? g.clone() : sums[i] + g;
      }
    }
    for (int i = 0; i < 3; ++i) masters[i] = masters[i] - sums[i] * (1.0f / world_size) * 0.125f;
  }
  return masters;
}

using TrainCase = std::tuple<DType, bool, Strategy>;
class MixedPrecisionTrainingTest : public MixedPrecisionTest,
                                   public testing::WithParamInterface<TrainCase> {};

// MP-1 (fp32 originals, not offload), MP-2, MP-3, MP-5, MP-9 (not offload), MP-18, CORE-3, F2MP-1.
TEST_P(MixedPrecisionTrainingTest, TrainsToTheBitsOfTheUnshardedModelThatCastsAtTheSamePlaces) {
  const auto [dtype, reduces_in_fp32, strategy] = GetParam();
  const torch::ScalarType low = ScalarTypeOf(dtype);
  const auto expected = UnshardedRun(
      *Make<Net>(), 2, 4, {low, torch::kBFloat16, reduces_in_fp32 ? torch::kFloat32 : low});
  ForEachRank(
      2, [&, dtype = dtype, reduces_in_fp32 = reduces_in_fp32, strategy = strategy](int rank) {
        auto model = Make<Net>();
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
        const auto trained = FullParameters(sharded->session());
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(trained[i], expected[i])) << i;
      });
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes, MixedPrecisionTrainingTest,
    testing::Combine(testing::Values(DType::kBf16, DType::kFp16), testing::Bool(),
                     testing::Values(Strategy::kFullShard, Strategy::kShardGradOp)));

// The scale is a power of two, so it leaves no trace but in overflows. SGS-4, MP-6 (fp16, not
// offload)
TEST_F(MixedPrecisionTest, LossScalingInFp16TrainsAsTheUnscaledModelOnceTheScaleFits) {
  const auto expected =
      UnshardedRun(*Make<Net>(), 2, 3, {torch::kFloat16, torch::kFloat64, torch::kFloat16});
  ForEachRank(2, [&](int rank) {
    auto model = Make<Net>();
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
    const auto trained = FullParameters(sharded->session());
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

// --- Buffers ---

TEST_F(MixedPrecisionTest, BuffersAreCastOnceAndOriginalForSavingAndAfterwards) {  // MP-7, MP-8
  auto model = Make<Net>();
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
      auto model = Make<Net>();
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
  auto model = Make<Net>();
  MixedPrecision precision;
  precision.param_dtype = DType::kBf16;
  precision.full_precision_in_eval = true;
  ASSERT_OK_AND_ASSIGN(auto sharded,
                       ShardedModel::Attach(model, OptionsFor(0), AlwaysWrap(), With(precision)));
  const auto expect_step = [&](torch::ScalarType dtype, const std::function<void()>& body) {
    std::vector<torch::Tensor> masters = FullParameters(sharded->session());
    std::vector<torch::Tensor> p;
    for (const torch::Tensor& m : masters) p.push_back(m.to(dtype).clone().requires_grad_());
    const torch::Tensor shift = torch::full({4}, 0.1, torch::kFloat64).to(dtype);
    const torch::Tensor x = Batch(0, 1).to(dtype);
    Loss(((x * p[1] + shift) * p[0]) * p[2] + shift).backward();
    ASSERT_OK(sharded->RunStep([&] {
      body();
      return sharded->Step();
    }));
    const auto trained = FullParameters(sharded->session());
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
  auto model = Make<Net>();
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
