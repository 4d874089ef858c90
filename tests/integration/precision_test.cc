// What the dtypes of a job do to the numbers: through a real coordinator, worker, executors
// (threads) and sessions.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/toy_cluster.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::ConfigFor;
using testing_support::ExpectNear;
using testing_support::ReadAll;
using testing_support::ReferenceRun;
using testing_support::ToyModel;
using testing_support::TrainToy;

class PrecisionTest : public testing_support::ToyCluster {};

// One unit, trained by hand: what the optimizer gets is in the parameters, as the learning rate
// is 1.
class ReduceDTypeTest : public PrecisionTest {
 protected:
  // Returns rank 0's parameters after one step from zero in which rank r gives gradients[r].
  std::vector<float> StepFromZero(const JobConfig& options,
                                  const std::vector<std::vector<float>>& gradients,
                                  const StepOptions& step = StepOptions(),
                                  bool* skipped = nullptr) {
    JobConfig config = options;
    config.world_size = gradients.size();
    config.optimizer = OptimizerKind::kSgd;
    config.groups[0] = ParamGroup();
    config.groups[0].learning_rate = 1.0;
    const int64_t numel = gradients[0].size();
    const ModelSpec model = {{{"u", {{"w", {numel}, DType::kFp32}}}}};
    StartCluster(config.world_size);
    std::vector<float> result;
    ForEachRank(model, config, [&](Session* session) {
      ASSERT_OK(session->Initialize(
          [](int, int, absl::Span<float> values) { std::fill(values.begin(), values.end(), 0); }));
      ASSERT_OK(session->AddGradient(0, 0, gradients[session->rank()]));
      ASSERT_OK_AND_ASSIGN(const StepResult taken, session->Step(step));
      ASSERT_OK_AND_ASSIGN(const std::vector<float> all, ReadAll(session));
      if (session->rank() != 0) return;
      result = all;
      if (skipped != nullptr) *skipped = taken.skipped;
    });
    return result;
  }
};

float Rounded(DType dtype, float value) {
  host::RoundToHalf(dtype, &value, 1);
  return value;
}

// FP16-2 (reduce dtype), F2MP-2: each rank's gradient is rounded to the reduce dtype. Unlike
// PyTorch's, the sum over the ranks is made in fp32 and is not rounded again, unless asked for.
TEST_F(ReduceDTypeTest, GradientsAreRoundedToItOnceAndTheMeanOnlyIfItIsKept) {
  std::vector<std::vector<float>> gradients(3, std::vector<float>(37));
  for (int r = 0; r < 3; ++r) {
    for (int i = 0; i < 37; ++i)
      gradients[r][i] = std::sin(1.3f * i + 5 * r) * std::exp2(0.5f * (i - 18));
  }
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    for (const bool keep : {false, true}) {
      SCOPED_TRACE(testing::Message() << Name(dtype) << (keep ? ", kept" : ""));
      JobConfig config = ConfigFor(3);
      config.reduce_dtype = dtype;
      config.keep_low_precision_gradients = keep;
      const std::vector<float> parameters = StepFromZero(config, gradients);
      ASSERT_EQ(parameters.size(), 37);
      for (int i = 0; i < 37; ++i) {
        float mean = Rounded(dtype, gradients[0][i]);
        for (int r = 1; r < 3; ++r) mean += Rounded(dtype, gradients[r][i]);
        mean *= 1.0f / 3;
        if (keep) mean = Rounded(dtype, mean);
        EXPECT_EQ(parameters[i], 0.0f - mean) << i;
      }
    }
  }
}

// The sum of these, and it without being divided before, does not fit in fp16.
TEST_F(ReduceDTypeTest, SumThatFp16CannotHoldIsTheRightMean) {
  JobConfig config = ConfigFor(4);
  config.reduce_dtype = DType::kFp16;
  const std::vector<std::vector<float>> gradients(4, std::vector<float>(5, 60000.0f));
  EXPECT_EQ(StepFromZero(config, gradients), std::vector<float>(5, -60000.0f));
}

// SGS-3, SGS-5 (in fp16): the gradient itself does not fit.
TEST_F(ReduceDTypeTest, GradientThatOverflowsFp16OnOneRankSkipsTheStepOnAll) {
  std::vector<std::vector<float>> gradients(2, std::vector<float>(5, 1.0f));
  gradients[1][3] = 70000.0f;
  StepOptions step;
  step.skip_non_finite = true;
  for (const DType dtype : {DType::kFp16, DType::kBf16}) {
    JobConfig config = ConfigFor(2);
    config.reduce_dtype = dtype;
    bool skipped = false;
    const std::vector<float> parameters = StepFromZero(config, gradients, step, &skipped);
    EXPECT_EQ(skipped, dtype == DType::kFp16);
    EXPECT_EQ(parameters[0], skipped ? 0.0f : -1.0f);
  }
}

TEST_F(PrecisionTest, LowPrecisionReduceStaysNearTheReference) {
  StartCluster(2);
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    JobConfig config = ConfigFor(2);
    config.reduce_dtype = dtype;
    ExpectNear(Train(ToyModel(3), config, 3, 1, std::string(Name(dtype))),
               ReferenceRun(ToyModel(3), config, 3), dtype == DType::kBf16 ? 2e-2f : 3e-3f);
  }
}

// The elements of all parameters of a unit, as its window shows them.
std::vector<float> ReadUnit(Session* session, int unit) {
  std::vector<float> all;
  const auto& parameters = session->layout().units[unit].flat.parameters();
  const DType dtype =
      session->layout().units[unit].compute_dtype.value_or(session->config().compute_dtype);
  for (size_t p = 0; p < parameters.size(); ++p) {
    std::vector<float> values(parameters[p].numel);
    if (session->precision(unit) == Precision::kFull) {
      const auto* full = reinterpret_cast<const float*>(session->full_parameter(unit, p));
      values.assign(full, full + values.size());
    } else if (IsHalf(dtype)) {
      host::CastHalfToFp32(dtype, reinterpret_cast<const uint16_t*>(session->parameter(unit, p)),
                           values.data(), values.size());
    } else {
      memcpy(values.data(), session->parameter(unit, p), values.size() * sizeof(float));
    }
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<float> ReadUnitIn(Session* session, int unit, Precision precision) {
  EXPECT_OK(session->Unshard(unit, precision));
  const std::vector<float> values = ReadUnit(session, unit);
  EXPECT_OK(session->Reshard(unit));
  return values;
}

// A step whose gradients do not depend on the parameters, so that all dtypes train alike.
absl::Status StepWithGradients(Session* session, int64_t step) {
  return session->RunStep([&] {
    for (int u = session->num_units() - 1; u >= 0; --u) {
      const auto& parameters = session->layout().units[u].flat.parameters();
      for (size_t p = 0; p < parameters.size(); ++p) {
        std::vector<float> gradient(parameters[p].numel);
        for (size_t i = 0; i < gradient.size(); ++i) {
          gradient[i] = std::sin(0.1f * i + u + p + 5 * session->rank() + 7 * step);
        }
        const absl::Status added = session->AddGradient(u, p, gradient);
        if (!added.ok()) return added;
      }
    }
    return session->Step().status();
  });
}

// MP-1 (mixed dtypes): with gradients in fp32 the shards are the same to the bit.
TEST_F(PrecisionTest, UnitsOfDifferentDTypesArePublishedInTheirOwn) {
  StartCluster(4);
  ModelSpec mixed = ToyModel(3);
  mixed.units[1].compute_dtype = DType::kFp32;
  mixed.units[2].compute_dtype = DType::kFp16;
  JobConfig config = ConfigFor(2);
  std::vector<std::vector<float>> exact(3);
  const auto train = [&](Session* session) {
    ASSERT_OK(testing_support::InitializeToy(session));
    for (int64_t step = 1; step <= 3; ++step) ASSERT_OK(StepWithGradients(session, step));
  };
  ForEachRank(
      ToyModel(3), config,
      [&](Session* session) {
        train(session);
        for (int u = 0; u < 3; ++u) {
          const std::vector<float> values = ReadUnitIn(session, u, Precision::kCompute);
          if (session->rank() == 0) exact[u] = values;
        }
      },
      "fp32");
  config.compute_dtype = DType::kBf16;
  ForEachRank(
      mixed, config,
      [&](Session* session) {
        train(session);
        for (int u = 0; u < 3; ++u) {
          std::vector<float> expected = exact[u];
          if (u == 0) host::RoundToHalf(DType::kBf16, expected.data(), expected.size());
          if (u == 2) host::RoundToHalf(DType::kFp16, expected.data(), expected.size());
          EXPECT_EQ(ReadUnitIn(session, u, Precision::kCompute), expected) << u;
        }
      },
      "mixed");
}

TEST_F(PrecisionTest, WindowInFullPrecisionShowsTheShardsOfEveryStep) {  // MP-7, MP-15
  StartCluster(3);
  JobConfig config = ConfigFor(3);
  config.compute_dtype = DType::kBf16;
  ForEachRank(ToyModel(3), config, [&](Session* session) {
    ASSERT_OK(testing_support::InitializeToy(session));
    for (int64_t step = 1; step <= 4; ++step) {
      for (int again = 0; again < 2; ++again) {
        for (int u = 0; u < 3; ++u) {
          std::vector<float> full = ReadUnitIn(session, u, Precision::kFull);
          std::vector<float> expected;
          const auto& parameters = session->layout().units[u].flat.parameters();
          for (size_t p = 0; step == 1 && p < parameters.size(); ++p) {
            for (int64_t i = 0; i < parameters[p].numel; ++i) {
              expected.push_back(testing_support::InitialValue(u, p, i));
            }
          }
          if (step == 1) {
            EXPECT_EQ(full, expected);
          }
          const std::vector<float> compute = ReadUnitIn(session, u, Precision::kCompute);
          EXPECT_NE(full, compute);
          host::RoundToHalf(DType::kBf16, full.data(), full.size());
          EXPECT_EQ(full, compute) << "unit " << u << ", step " << step;
        }
      }
      ASSERT_OK(StepWithGradients(session, step));
    }
  });
}

TEST(SeveralWorkersPrecisionTest, WindowsShowTheShardsOfAllWorkersInBothPrecisions) {
  LocalCluster::Options cluster_options;
  cluster_options.num_workers = 2;
  cluster_options.num_devices = 1;
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(cluster_options));
  SessionOptions options = testing_support::ToyOptions(*cluster, "toy", 2);
  options.model.units[1].compute_dtype = DType::kFp16;
  options.config.compute_dtype = options.config.reduce_dtype = DType::kBf16;
  ASSERT_OK_AND_ASSIGN(auto team,
                       testing_support::TrainerTeam::Open(
                           options, {cluster->worker_address(0), cluster->worker_address(1)}));
  std::vector<float> seen[2];
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(testing_support::InitializeToy(session));
    for (int64_t step = 1; step <= 2; ++step) {
      RETURN_IF_ERROR(StepWithGradients(session, step));
      for (int u = 0; u < session->num_units(); ++u) {
        std::vector<float> full = ReadUnitIn(session, u, Precision::kFull);
        seen[session->rank()].insert(seen[session->rank()].end(), full.begin(), full.end());
        host::RoundToHalf(u == 1 ? DType::kFp16 : DType::kBf16, full.data(), full.size());
        EXPECT_EQ(ReadUnitIn(session, u, Precision::kCompute), full) << u;
      }
    }
    return absl::OkStatus();
  }));
  EXPECT_EQ(seen[0], seen[1]);
}

TEST_F(PrecisionTest, WindowInFullPrecisionWorksAfterAFailureInTheStep) {
  StartCluster(2);
  JobConfig config = ConfigFor(2);
  config.compute_dtype = DType::kFp16;
  ForEachRank(ToyModel(2), config, [&](Session* session) {
    ASSERT_OK(testing_support::InitializeToy(session));
    const std::vector<float> before = ReadUnitIn(session, 1, Precision::kFull);
    EXPECT_THAT(session->RunStep([&]() -> absl::Status {
      // Rank 1's error may reach the other one while that still waits for the window.
      const absl::Status opened = session->Unshard(1, Precision::kFull);
      if (session->rank() == 1) {
        EXPECT_OK(opened);
        return absl::InternalError("broken");
      }
      RETURN_IF_ERROR(opened);
      return session->Step().status();
    }),
                StatusIs(absl::StatusCode::kInternal, testing::HasSubstr("broken")));
    EXPECT_EQ(ReadUnitIn(session, 1, Precision::kFull), before);
  });
}

// MP-17: a backward through full precision reduces in it.
TEST_F(ReduceDTypeTest, GradientOfAWindowInFullPrecisionTravelsInFullPrecision) {
  StartCluster(1);
  JobConfig config = ConfigFor(1);
  config.compute_dtype = config.reduce_dtype = DType::kFp16;
  config.optimizer = OptimizerKind::kSgd;
  config.groups[0] = ParamGroup();
  config.groups[0].learning_rate = 1.0;
  ForEachRank({{{"u", {{"w", {3}, DType::kFp32}}}}}, config, [](Session* session) {
    ASSERT_OK(session->Initialize(
        [](int, int, absl::Span<float> values) { std::fill(values.begin(), values.end(), 0); }));
    const std::vector<float> gradient = {1.0f + std::exp2(-20.0f), 70000.0f, -1.0f};
    ASSERT_OK(session->Unshard(0, Precision::kFull));
    ASSERT_OK(session->Reshard(0));
    for (int k = 0; k < 2; ++k) ASSERT_OK(session->AddGradient(0, 0, gradient));
    ASSERT_OK(session->Step());
    const std::vector<float> expected = {-2 * gradient[0], -2 * gradient[1], -2 * gradient[2]};
    EXPECT_EQ(ReadUnitIn(session, 0, Precision::kFull), expected);
    ASSERT_OK(session->Unshard(0));
    ASSERT_OK(session->AddGradient(0, 0, gradient));
    EXPECT_THAT(session->Step(),
                StatusIs(absl::StatusCode::kFailedPrecondition, testing::HasSubstr("NaN or Inf")))
        << "and after one in the compute dtype in the reduce dtype";
  });
}

TEST_F(PrecisionTest, RanksThatAskForDifferentPrecisionsAreToldBoth) {
  StartCluster(2);
  JobConfig config = ConfigFor(2);
  config.compute_dtype = DType::kBf16;
  ForEachRank(ToyModel(2), config, [](Session* session) {
    ASSERT_OK(testing_support::InitializeToy(session));
    EXPECT_THAT(session->Unshard(1, session->rank() == 0 ? Precision::kCompute : Precision::kFull),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         testing::AllOf(testing::HasSubstr("bf16"), testing::HasSubstr("fp32"))));
  });
}

// One line of the guard, in a child, since the first touch ends the process.
TEST_F(PrecisionTest, UseInAnotherPrecisionThanTheWindowsNamesTheParameter) {
  StartCluster(1);
  JobConfig config = ConfigFor(1);
  config.compute_dtype = DType::kBf16;
  ASSERT_OK_AND_ASSIGN(auto session, Session::Open(OptionsFor(0, ToyModel(2), config)));
  ASSERT_OK(testing_support::InitializeToy(session.get()));
  ASSERT_OK(session->Unshard(1));
  EXPECT_EXIT({ exit(*session->full_parameter(1, 1) > std::byte{0}); },
              testing::KilledBySignal(SIGSEGV),
              "parameter 'unit1.bias' of unit 'unit1' was used while the unit is sharded");
}

TEST_F(PrecisionTest, HalfPrecisionParametersAreTheRoundedShards) {
  StartCluster(4);
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    JobConfig config = ConfigFor(2);
    config.compute_dtype = dtype;
    const auto expect_rounded = [dtype](Session* session) {
      ASSERT_OK(testing_support::InitializeToy(session));
      for (int u = 0; u < session->num_units(); ++u) {
        ASSERT_OK(session->Unshard(u));
        const auto& parameters = session->layout().units[u].flat.parameters();
        for (size_t p = 0; p < parameters.size(); ++p) {
          std::vector<float> values(parameters[p].numel);
          host::CastHalfToFp32(dtype, reinterpret_cast<const uint16_t*>(session->parameter(u, p)),
                               values.data(), values.size());
          for (size_t i = 0; i < values.size(); ++i) {
            EXPECT_EQ(values[i], Rounded(dtype, testing_support::InitialValue(u, p, i)));
          }
        }
        ASSERT_OK(session->Reshard(u));
      }
    };
    ForEachRank(ToyModel(2), config, expect_rounded, std::string(Name(dtype)));
  }
}

}  // namespace
}  // namespace tessera
