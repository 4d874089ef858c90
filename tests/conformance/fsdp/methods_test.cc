// Methods other than forward as windows of a unit. (PyTorch: test_fully_shard_training, the part on
// register_fsdp_forward_method)
#include "tests/conformance/fsdp/harness.h"
#include "tests/conformance/fsdp/models.h"

namespace tessera::conformance {
namespace {

using testing::ElementsAre;

// Which way the model goes through its encoder's parameters.
enum class Way { kForward, kMethod, kFunction, kOwnMethodInForward };

struct EncoderImpl : torch::nn::Module {
  EncoderImpl() : patches(register_module("patches", torch::nn::Linear(6, 4))) {}
  std::pair<torch::Tensor, int> features(const torch::Tensor& x, int depth = 1) {
    seen = x.scalar_type();
    return {torch::tanh(patches->forward(x)), depth};
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return (way == Way::kOwnMethodInForward ? own_features(x) : features(x)).first;
  }
  torch::nn::Linear patches;
  Way way = Way::kForward;
  torch::ScalarType seen = torch::kFloat32;
  std::function<std::pair<torch::Tensor, int>(const torch::Tensor&)> own_features;
};
using Encoder = Sharded<EncoderImpl>;

struct ClassifierImpl : torch::nn::Module {
  explicit ClassifierImpl(Way way)
      : encoder(register_module("encoder", std::make_shared<Encoder>())),
        head(register_module("head", std::make_shared<LinearUnit>(4, 3))) {
    scale = register_parameter("scale", torch::ones({4}));
    FillParameters(*this);
    encoder->way = way;
    Encoder* const inner = encoder.get();
    encoder->own_features = [inner](const torch::Tensor& x) {
      return inner->Call(&EncoderImpl::features, x, 2);
    };
  }
  torch::Tensor encode(const torch::Tensor& x) {
    switch (encoder->way) {
      case Way::kMethod:
        return encoder->Call(&EncoderImpl::features, x, 3).first * scale;
      case Way::kFunction:
        return encoder
                   ->Call([](EncoderImpl& e, const torch::Tensor& y) { return e.features(y); }, x)
                   .first *
               scale;
      default:
        return encoder->forward(x) * scale;
    }
  }
  torch::Tensor forward(const torch::Tensor& x) { return head->forward(encode(x)); }
  std::shared_ptr<Encoder> encoder;
  std::shared_ptr<LinearUnit> head;
  torch::Tensor scale;
};
using Classifier = Sharded<ClassifierImpl>;

torch::Tensor LossOf(Classifier& model, int64_t step, int rank) {
  return model.forward(Samples(step, rank, {5, 6})).square().mean();
}

class MethodsTest : public ConformanceTest {
 protected:
  static Training<Classifier> TrainingOf(Way way) {
    Training<Classifier> training;
    training.make = [way] { return std::make_shared<Classifier>(way); };
    training.loss = [](Classifier& model, int64_t step, int rank) {
      return LossOf(model, step, rank);
    };
    return training;
  }
  // Trains on two ranks and compares with the plain model; rank 0's operations of the last step.
  std::vector<std::string> Train(const Training<Classifier>& training, Strategy strategy) {
    SessionOptions options = Options(2);
    options.config.strategy = strategy;
    const Outcome expected = TrainPlain(training, options.config);
    ForEachRank(2, [&](int rank) {
      SessionOptions own = options;
      own.rank = rank;
      TrainSharded(training, own, expected);
    });
    return Operations(options.job_id, 0, training.steps);
  }
};

// F2TR-22: the window of a method is that of forward, operation by operation.
TEST_F(MethodsTest, MethodCalledAsAWindowTrainsAsThePlainModelWithTheOperationsOfForward) {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    const auto forward = Train(TrainingOf(Way::kForward), strategy);
    EXPECT_EQ(Count(forward, "unshard encoder"), strategy == Strategy::kFullShard ? 2 : 1);
    EXPECT_EQ(Count(forward, "reduce encoder"), 1);
    EXPECT_EQ(Train(TrainingOf(Way::kMethod), strategy), forward);
    EXPECT_EQ(Train(TrainingOf(Way::kFunction), strategy), forward);
  }
}

TEST_F(MethodsTest, MethodCalledInItsOwnModulesForwardIsInThatWindow) {
  const auto forward = Train(TrainingOf(Way::kForward), Strategy::kFullShard);
  EXPECT_EQ(Train(TrainingOf(Way::kOwnMethodInForward), Strategy::kFullShard), forward);
}

// The units that the method does not reach are left as they are.
TEST_F(MethodsTest, MethodOfTheRootIsAWindowOfTheWholeModel) {
  Training<Classifier> training = TrainingOf(Way::kMethod);
  training.loss = [](Classifier& model, int64_t step, int rank) {
    return model.Call(&ClassifierImpl::encode, Samples(step, rank, {5, 6})).square().mean();
  };
  const auto operations = Train(training, Strategy::kFullShard);
  EXPECT_EQ(Count(operations, "unshard root"), 1);
  EXPECT_EQ(Count(operations, "unshard encoder"), 2);
  EXPECT_EQ(Count(operations, "unshard head"), 0);
  EXPECT_EQ(Count(operations, "reduce"), 2);
}

TEST_F(MethodsTest, ArgumentsOfAMethodAreCastAsThoseOfForward) {
  auto model = std::make_shared<Classifier>(Way::kMethod);
  AttachOptions attach;
  attach.precision.param_dtype = DType::kBf16;
  attach.precision.cast_forward_inputs = true;
  ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, Options(1), AlwaysWrap(), attach));
  const torch::Tensor x = Samples(1, 0, {5, 6});
  const auto result = model->encoder->Call(&EncoderImpl::features, x, 7);
  EXPECT_EQ(model->encoder->seen, torch::kBFloat16);
  EXPECT_EQ(result.first.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(result.second, 7);
  EXPECT_EQ(x.scalar_type(), torch::kFloat32) << "the caller's stays as it is";
}

TEST_F(MethodsTest, ErrorInAMethodLeavesNoWindowBehindThatTheNextStepWouldMiss) {
  auto model = std::make_shared<Classifier>(Way::kMethod);
  ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, Options(1)));
  const absl::Status status = sharded->RunStep([&] {
    model->encoder->Call(&EncoderImpl::features, torch::ones({2, 5}), 1);
    return absl::OkStatus();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnknown, testing::HasSubstr("shapes")));
  ASSERT_OK(sharded->RunStep([&] {
    LossOf(*model, 1, 0).backward();
    for (int unit = 1; unit < 3; ++unit) EXPECT_TRUE(sharded->session().closed(unit)) << unit;
    return sharded->Step();
  }));
}

// What PyTorch would compute on a shard's tensor of another shape.
TEST_F(MethodsTest, MethodCalledOutsideOfAWindowNamesTheParameter) {
  auto model = std::make_shared<Classifier>(Way::kMethod);
  ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, Options(1)));
  EXPECT_EXIT((void)model->encoder->features(Samples(1, 0, {5, 6})).first.sum().item<float>(),
              testing::KilledBySignal(SIGSEGV),
              "parameter 'encoder.patches.[a-z]+' of unit 'encoder' was used while the unit is "
              "sharded");
}

}  // namespace
}  // namespace tessera::conformance
