// One global batch, cut among 1, 2, 3, 4, 5 or 8 ranks: the same losses, within rounding.
//
// y = W2 tanh(W1 x + b1) + b2, squared error, 120 samples; gradients by hand. A rank's gradient is
// the mean over its samples, so that the mean over the ranks is that over the batch.
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kInputs = 3, kHidden = 7, kSamples = 120, kSteps = 40;
// A loss is a mean of 120 squares of about 1, each rounded to fp32 in another order of sums; forty
// steps of an optimizer carry such a rounding on.
constexpr double kTolerance = 2e-5;

ModelSpec Model() {
  return {{{"hidden", {{"w1", {kHidden, kInputs}}, {"b1", {kHidden}}}},
           {"output", {{"w2", {1, kHidden}}, {"b2", {1}}}}}};
}

float Input(int64_t step, int sample, int i) {
  return std::sin(0.37f * static_cast<float>(sample * kInputs + i) + static_cast<float>(step % 4));
}

float Target(int64_t step, int sample) {
  float sum = 0;
  for (int i = 0; i < kInputs; ++i) sum += Input(step, sample, i) * static_cast<float>(i - 1);
  return std::tanh(sum) * 1.5f;
}

struct Gradients {
  float w1[kHidden * kInputs] = {}, b1[kHidden] = {}, w2[kHidden] = {}, b2[1] = {};
};

// The loss over samples [begin, end), and its gradients.
double LossAndGradients(int64_t step, int begin, int end, const float* w1, const float* b1,
                        const float* w2, float b2, Gradients* gradients) {
  double loss = 0;
  const float count = static_cast<float>(end - begin);
  for (int sample = begin; sample < end; ++sample) {
    float hidden[kHidden], output = b2;
    for (int h = 0; h < kHidden; ++h) {
      float sum = b1[h];
      for (int i = 0; i < kInputs; ++i) sum += w1[h * kInputs + i] * Input(step, sample, i);
      hidden[h] = std::tanh(sum);
      output += w2[h] * hidden[h];
    }
    const float error = output - Target(step, sample);
    loss += static_cast<double>(error) * error / count;
    const float slope = 2 * error / count;
    gradients->b2[0] += slope;
    for (int h = 0; h < kHidden; ++h) {
      gradients->w2[h] += slope * hidden[h];
      const float inner = slope * w2[h] * (1 - hidden[h] * hidden[h]);
      gradients->b1[h] += inner;
      for (int i = 0; i < kInputs; ++i)
        gradients->w1[h * kInputs + i] += inner * Input(step, sample, i);
    }
  }
  return loss;
}

// A step; returns this rank's loss.
absl::StatusOr<double> Step(Session* session, int64_t step) {
  RETURN_IF_ERROR(session->Unshard(0));
  RETURN_IF_ERROR(session->Unshard(1));
  const auto values = [&](int unit, int parameter) {
    return reinterpret_cast<const float*>(session->parameter(unit, parameter));
  };
  const int count = kSamples / session->config().world_size;
  Gradients gradients;
  const double loss =
      LossAndGradients(step, session->rank() * count, (session->rank() + 1) * count, values(0, 0),
                       values(0, 1), values(1, 0), values(1, 1)[0], &gradients);
  RETURN_IF_ERROR(session->AddGradient(1, 0, absl::MakeSpan(gradients.w2)));
  RETURN_IF_ERROR(session->AddGradient(1, 1, absl::MakeSpan(gradients.b2)));
  RETURN_IF_ERROR(session->Reduce(1));
  RETURN_IF_ERROR(session->AddGradient(0, 0, absl::MakeSpan(gradients.w1)));
  RETURN_IF_ERROR(session->AddGradient(0, 1, absl::MakeSpan(gradients.b1)));
  RETURN_IF_ERROR(session->Reduce(0));
  RETURN_IF_ERROR(session->Step().status());
  return loss;
}

std::vector<double> LossCurve(const JobConfig& config) {
  std::vector<double> losses(kSteps);
  LocalCluster::Options cluster_options;
  cluster_options.num_devices = config.world_size;
  auto cluster = LocalCluster::Start(cluster_options);
  EXPECT_OK(cluster);
  SessionOptions options = ToyOptions(**cluster, "curve", config.world_size);
  options.model = Model();
  options.config = config;
  auto team = TrainerTeam::Open(options);
  EXPECT_OK(team);
  std::vector<std::vector<double>> by_rank(config.world_size, std::vector<double>(kSteps));
  EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(session->Initialize([](int unit, int parameter, absl::Span<float> values) {
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = 0.5f * std::sin(static_cast<float>(3 * i) + unit + 2 * parameter);
    }));
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSIGN_OR_RETURN(by_rank[session->rank()][step], Step(session, step));
    }
    return absl::OkStatus();
  }));
  for (int64_t step = 0; step < kSteps; ++step) {
    for (const auto& of_rank : by_rank) losses[step] += of_rank[step] / config.world_size;
  }
  return losses;
}

class LossCurveTest : public testing::TestWithParam<OptimizerKind> {};

TEST_P(LossCurveTest, IsTheSameForEveryWorldSize) {
  JobConfig config;
  config.optimizer = GetParam();
  config.groups[0].learning_rate = GetParam() == OptimizerKind::kSgd ? 0.05 : 0.02;
  config.groups[0].momentum = 0.9;
  config.groups[0].weight_decay = 0.01;
  config.max_gradient_norm = 0.8;
  const std::vector<double> alone = LossCurve(config);
  EXPECT_LT(alone.back(), 0.2 * alone.front()) << "it learns";
  for (const int world_size : {2, 3, 4, 5, 8}) {
    config.world_size = world_size;
    const std::vector<double> curve = LossCurve(config);
    for (int step = 0; step < kSteps; ++step)
      EXPECT_NEAR(curve[step], alone[step], kTolerance * alone[0])
          << world_size << " ranks, step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, LossCurveTest,
                         testing::Values(OptimizerKind::kSgd, OptimizerKind::kAdam,
                                         OptimizerKind::kAdamW));

}  // namespace
}  // namespace tessera
