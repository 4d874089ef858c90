// What a step makes of gradients: none at all, divisors and weights, norms other than the second,
// loss scaling. Against plain scalar code that knows no shards.
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/gradient_scaler.h"
#include "tessera/local_cluster.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;
using testing_support::InitialValue;
using testing_support::ReadAll;
using testing_support::ReferenceState;
using testing_support::ReferenceUpdate;
using testing_support::ToyGradient;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kUnits = 3;

// How a run differs from the toy's own.
struct Variation {
  // Whether `rank` gives the parameter (numbered over the model) a gradient in `step`.
  std::function<bool(int parameter, int rank, int64_t step)> gives = [](int, int, int64_t) {
    return true;
  };
  double divisor = 1.0;
  std::vector<double> weights;  // By rank; empty: none.
};

absl::Status Step(Session* session, int64_t step, const Variation& variation) {
  StepOptions options;
  options.gradient_divisor = variation.divisor;
  if (!variation.weights.empty()) options.weight = variation.weights[session->rank()];
  int number = 0;
  for (int u = 0; u < session->num_units(); ++u) {
    RETURN_IF_ERROR(session->Unshard(u));
    const auto& parameters = session->layout().units[u].flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p, ++number) {
      if (!variation.gives(number, session->rank(), step)) continue;
      const float* values = reinterpret_cast<const float*>(session->parameter(u, p));
      std::vector<float> gradient(parameters[p].numel);
      for (size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = ToyGradient(values[i], i, session->rank(), step);
      RETURN_IF_ERROR(session->AddGradient(u, p, gradient));
    }
    RETURN_IF_ERROR(session->Reshard(u));
    RETURN_IF_ERROR(session->Reduce(u));
  }
  return session->Step(options).status();
}

double NormOf(const std::vector<std::vector<float>>& gradients, double p) {
  double norm = 0;
  for (const auto& gradient : gradients) {
    for (const float g : gradient) {
      const double magnitude = std::fabs(static_cast<double>(g));
      norm = std::isinf(p) ? std::max(norm, magnitude) : norm + std::pow(magnitude, p);
    }
  }
  return std::isinf(p) ? norm : std::pow(norm, 1 / p);
}

std::vector<float> Reference(const JobConfig& config, int64_t steps, const Variation& variation) {
  const ModelSpec model = ToyModel(kUnits);
  std::vector<ReferenceState> states;
  std::vector<int64_t> updates;
  for (size_t u = 0; u < model.units.size(); ++u) {
    for (size_t p = 0; p < model.units[u].parameters.size(); ++p) {
      ReferenceState& state = states.emplace_back();
      for (int64_t i = 0; i < *Numel(model.units[u].parameters[p]); ++i)
        state.p.push_back(InitialValue(u, p, i));
      state.m.resize(state.p.size());
      state.v.resize(state.p.size());
    }
  }
  updates.resize(states.size());
  double total_weight = config.world_size;
  if (!variation.weights.empty()) {
    total_weight = 0;
    for (const double weight : variation.weights) total_weight += weight;
  }
  for (int64_t step = 1; step <= steps; ++step) {
    std::vector<std::vector<float>> gradients(states.size());
    for (size_t t = 0; t < states.size(); ++t) {
      for (int rank = 0; rank < config.world_size; ++rank) {
        if (!variation.gives(t, rank, step)) continue;
        gradients[t].resize(states[t].p.size());
        for (size_t i = 0; i < gradients[t].size(); ++i)
          gradients[t][i] += ToyGradient(states[t].p[i], i, rank, step);
      }
      for (float& g : gradients[t]) g /= total_weight * variation.divisor;
    }
    double scale = 1;
    if (config.max_gradient_norm > 0) {
      scale = std::min(
          1.0, config.max_gradient_norm / (NormOf(gradients, config.gradient_norm_p) + 1e-6));
    }
    for (size_t t = 0; t < states.size(); ++t) {
      if (gradients[t].empty()) continue;
      ReferenceUpdate(config, config.groups[0], ++updates[t], scale, gradients[t], &states[t]);
    }
  }
  std::vector<float> all;
  for (const ReferenceState& state : states) all.insert(all.end(), state.p.begin(), state.p.end());
  return all;
}

class GradientsTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 4;
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }
  SessionOptions Options(int world_size) {
    return ToyOptions(*cluster_, absl::StrCat("toy", ++num_jobs_), world_size, kUnits);
  }
  // Trains `steps` steps and compares with the reference; deletes the job.
  void ExpectReference(const SessionOptions& options, int64_t steps, const Variation& variation) {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
    ASSERT_OK(team.TrainTo(0));
    std::vector<float> values;
    ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
      for (int64_t step = 1; step <= steps; ++step)
        RETURN_IF_ERROR(session->RunStep([&] { return Step(session, step, variation); }));
      ASSIGN_OR_RETURN(auto all, ReadAll(session));
      if (session->rank() == 0) values = std::move(all);
      return absl::OkStatus();
    }));
    EXPECT_THAT(values, Pointwise(FloatNear(3e-6f), Reference(options.config, steps, variation)));
    team = TrainerTeam();
    cluster_.reset();
    SetUp();
  }

  std::unique_ptr<LocalCluster> cluster_;
  int num_jobs_ = 0;
};

// A gradient of zero moves a parameter by its decay and its moments; none at all does not, and the
// bias corrections count a parameter's own updates.
TEST_F(GradientsTest, ParameterWithoutAGradientIsLeftAsItIsAndCountsItsOwnUpdates) {
  Variation variation;
  variation.gives = [](int parameter, int rank, int64_t step) {
    if (parameter == 1) return false;             // Never used.
    if (parameter == 2) return step % 2 == 0;     // Every other step.
    if (parameter == 3) return rank == step % 2;  // By one rank only.
    if (parameter == 4) return step == 1 || (rank == 1 && step > 3);
    return true;
  };
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    for (const int world_size : {2, 3}) {
      SCOPED_TRACE(absl::StrCat("optimizer ", static_cast<int>(kind), ", ranks ", world_size));
      SessionOptions options = Options(world_size);
      options.config.optimizer = kind;
      options.config.groups[0].momentum = 0.9;
      ExpectReference(options, 7, variation);
    }
  }
}

TEST_F(GradientsTest, GradientIsDividedByTheDivisorAndByTheSumOfTheWeights) {
  Variation variation;
  variation.divisor = 8.0;
  ExpectReference(Options(2), 4, variation);
  variation.divisor = 0.5;
  variation.weights = {30, 0, 12};  // A rank may have no tokens.
  SessionOptions options = Options(3);
  options.config.max_gradient_norm = 0.5;
  options.config.optimizer = OptimizerKind::kSgd;
  ExpectReference(options, 4, variation);
}

// CLIP-2, as far as norms go: over shards of every size.
TEST_F(GradientsTest, ClippingByEveryNormIsThatOfTheWholeGradient) {
  for (const double p : {0.5, 1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    for (const int world_size : {1, 3}) {
      SCOPED_TRACE(absl::StrCat("p = ", p, ", ranks ", world_size));
      SessionOptions options = Options(world_size);
      options.config.gradient_norm_p = p;
      options.config.max_gradient_norm = std::isinf(p) ? 0.25 : 1.0;
      options.config.optimizer = OptimizerKind::kSgd;  // Adam would hide a wrong scale.
      ExpectReference(options, 3, Variation());
    }
  }
}

TEST_F(GradientsTest, RanksThatDisagreeOnADivisorOrAWeightChangeNothing) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options(2)));
  ASSERT_OK(team.TrainTo(1));
  const std::function<StepOptions(int)> wrong[] = {
      [](int rank) {
        StepOptions options;
        options.gradient_divisor = 1.0 + rank;
        return options;
      },
      [](int rank) {
        StepOptions options;
        if (rank == 1) options.weight = 3.0;
        return options;
      },
  };
  for (const auto& options : wrong) {
    for (const absl::Status& status : team.Run(
             [&](Session* session) { return session->Step(options(session->rank())).status(); })) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 and 1")));
    }
  }
  StepOptions bad;
  bad.gradient_divisor = 0;
  EXPECT_THAT(team.session(0)->Step(bad),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("divisor 0")));
  bad.gradient_divisor = 1;
  bad.weight = -1;
  EXPECT_THAT(team.session(0)->Step(bad),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("weight -1")));
  EXPECT_EQ(team.session(0)->next_step(), 2);
  ASSERT_OK(team.TrainTo(3));
}

// SGS-5: an overflow on one rank makes every rank skip the step and lower its scale.
TEST_F(GradientsTest, OverflowOnOneRankIsSkippedOnAllAndLowersTheScaleOnAll) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options(2)));
  ASSERT_OK(team.TrainTo(2));
  std::vector<std::vector<double>> scales(2);
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    GradientScaler::Options options;
    options.initial_scale = 1024;
    options.growth_interval = 2;
    GradientScaler scaler(options);
    for (int i = 0; i < 5; ++i) {
      ASSIGN_OR_RETURN(const std::vector<float> before, ReadAll(session));
      const auto& parameters = session->layout().units[0].flat.parameters();
      std::vector<float> gradient(parameters[0].numel, static_cast<float>(scaler.scale()));
      if (i == 1 && session->rank() == 1) gradient[3] = std::numeric_limits<float>::infinity();
      RETURN_IF_ERROR(session->AddGradient(0, 0, gradient));
      ASSIGN_OR_RETURN(const StepResult result, session->Step(scaler.Scaled(StepOptions())));
      ASSIGN_OR_RETURN(const std::vector<float> after, ReadAll(session));
      EXPECT_EQ(result.skipped, i == 1);
      EXPECT_EQ(after == before, result.skipped);
      EXPECT_EQ(result.step, i == 0 ? 3 : i + 2);
      if (!result.skipped) {
        EXPECT_NEAR(result.gradient_norm, std::sqrt(parameters[0].numel), 1e-4) << "unscaled";
      }
      scaler.Update(result);
      scales[session->rank()].push_back(scaler.scale());
    }
    return absl::OkStatus();
  }));
  EXPECT_THAT(scales[0], testing::ElementsAre(1024, 512, 512, 1024, 1024));
  EXPECT_EQ(scales[1], scales[0]);
}

}  // namespace
}  // namespace tessera
