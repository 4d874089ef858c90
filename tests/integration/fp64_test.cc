// Units in fp64 together with units in fp32, through a real coordinator, worker, executors
// (threads) and sessions. What training computes, tests/numerics compares with scalar code.
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/model_file.h"
#include "gtest/gtest.h"
#include "tessera/local_shards.h"
#include "tessera/session.h"
#include "tests/testing/flight_log.h"
#include "tests/testing/toy_cluster.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::FlightOp;
using testing_support::ReadFlightLog;

constexpr int kWorldSize = 3;
constexpr int64_t kNumel = 21;  // Of the parameter in fp64.

// Fp32 has no room for it.
double Fine(int64_t i) { return 1.0 + static_cast<double>(i) * 0x1p-40; }

class Fp64Test : public testing_support::ToyCluster {
 protected:
  void SetUp() override { StartCluster(kWorldSize); }
  static ModelSpec Model() {
    return {{{"root", {{"a", {5}, DType::kFp32}}}, {"wide", {{"b", {7, 3}, DType::kFp64}}}}};
  }
  static JobConfig Config() {
    JobConfig config;
    config.world_size = kWorldSize;
    config.optimizer = OptimizerKind::kSgd;
    config.groups[0].learning_rate = 1.0;
    return config;
  }
  // On each rank, of a job that has initial values: Fine() of fp64.
  void Run(const std::function<void(Session*)>& body) {
    ForEachRank(Model(), Config(), [&](Session* session) {
      ASSERT_OK(session->Initialize([](int unit, int, Values values) {
        if (unit == 0) {
          for (float& value : values.as<float>()) value = 0.5f;
        } else {
          for (int64_t i = 0; i < kNumel; ++i) values.as<double>()[i] = Fine(i);
        }
      }));
      body(session);
    });
  }
  static std::vector<double> WideParameter(Session* session) {
    std::vector<double> all;
    EXPECT_OK(session->ReadParameters(1, [&](int, absl::Span<const double> values) {
      all.assign(values.begin(), values.end());
    }));
    return all;
  }
};

TEST_F(Fp64Test, ItIsSeenReadAndSteppedInFp64) {
  Run([](Session* session) {
    ASSERT_OK(session->Unshard(1));
    EXPECT_EQ(session->full_dtype(1), DType::kFp64);
    const auto* seen = reinterpret_cast<const double*>(session->parameter(1, 0));
    for (int64_t i = 0; i < kNumel; ++i) EXPECT_EQ(seen[i], Fine(i));
    EXPECT_EQ(session->full_parameter(1, 0), session->parameter(1, 0)) << "the very same memory";
    ASSERT_OK(session->Reshard(1));
    const std::vector<double> gradient(kNumel, 0x1p-45);
    ASSERT_OK(session->AddGradient(1, 0, gradient));
    ASSERT_OK_AND_ASSIGN(const StepResult result, session->Step());
    EXPECT_DOUBLE_EQ(result.gradient_norm, 0x1p-45 * std::sqrt(21.0));
    const std::vector<double> trained = WideParameter(session);
    for (int64_t i = 0; i < kNumel; ++i) EXPECT_EQ(trained[i], Fine(i) - 0x1p-45);
  });
  // Gradients travelled in fp64, too.
  for (const FlightOp& op : ReadFlightLog(cluster_->worker_address(), "toy", 0)) {
    if (op.op != "reduce") continue;
    EXPECT_EQ(op.unit, "wide");
    EXPECT_EQ(op.bytes % (8 * kWorldSize), 0);
    EXPECT_GE(op.bytes, 8 * kNumel);
  }
}

TEST_F(Fp64Test, GradientOfAnotherDTypeIsRefusedByName) {
  Run([](Session* session) {
    EXPECT_THAT(session->AddGradient(1, 0, std::vector<float>(kNumel)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("gradient of 'b' is in fp32, the parameter in fp64")));
    EXPECT_THAT(session->AddGradient(0, 0, std::vector<double>(5)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("gradient of 'a' is in fp64, the parameter in fp32")));
  });
}

TEST_F(Fp64Test, HooksSeeFp64AndCompressionRoundsOnce) {
  Run([](Session* session) {
    CommHook hook;
    hook.before = [](int, absl::Span<double> gradient) {
      for (double& value : gradient) value *= 3;
      return absl::OkStatus();
    };
    hook.after = [](int, absl::Span<double> shard) {
      for (double& value : shard) value += 0x1p-44;
      return absl::OkStatus();
    };
    ASSERT_OK(session->RegisterCommHook(1, hook));
    ASSERT_OK(session->AddGradient(1, 0, std::vector<double>(kNumel, Fine(1))));
    ASSERT_OK(session->Step());
    const std::vector<double> trained = WideParameter(session);
    const double mean = (Fine(1) * 3 + Fine(1) * 3 + Fine(1) * 3) * (1.0 / kWorldSize);
    for (int64_t i = 0; i < kNumel; ++i) EXPECT_EQ(trained[i], Fine(i) - (mean + 0x1p-44));
  });
}

TEST_F(Fp64Test, CompressedGradientsAreSummedInFp64) {
  Run([](Session* session) {
    ASSERT_OK(session->RegisterCommHook(1, Bf16Compression()));
    // In bf16 1.0 + 2^-7, 2^-30 and 2^-31: fp32 loses what the second and third add to the first.
    const double own[kWorldSize] = {1.0 + 0x1p-7 + 0x1p-20, 0x1p-30, 0x1p-31};
    ASSERT_OK(session->AddGradient(1, 0, std::vector<double>(kNumel, own[session->rank()])));
    ASSERT_OK(session->Step());
    const double mean = (1.0 + 0x1p-7 + 0x1p-30 + 0x1p-31) * (1.0 / kWorldSize);
    const std::vector<double> trained = WideParameter(session);
    for (int64_t i = 0; i < kNumel; ++i) EXPECT_EQ(trained[i], Fine(i) - mean);
  });
}

TEST_F(Fp64Test, LocalShardsAreInFp64) {
  Run([](Session* session) {
    ASSERT_OK_AND_ASSIGN(const auto shards, LocalShards::Open(session));
    ASSERT_OK(session->AddGradient(1, 0, std::vector<double>(kNumel, 0x1p-43)));
    ASSERT_OK(session->AddGradient(0, 0, std::vector<float>(5, 0.25f)));
    StepOptions options;
    options.gradient_divisor = 2;
    ASSERT_OK(shards->Begin(options));
    const absl::Span<float> narrow = shards->values(0), narrow_gradient = shards->gradient(0);
    for (size_t i = 0; i < narrow.size(); ++i) narrow[i] -= narrow_gradient[i];
    const absl::Span<double> wide = shards->values(1), gradient = shards->gradient(1);
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_EQ(wide[i], Fine(shards->parts()[1].begin_elements + static_cast<int64_t>(i)));
      EXPECT_EQ(gradient[i], 0x1p-44);
      wide[i] -= gradient[i];
    }
    ASSERT_OK(shards->Commit());
    const std::vector<double> trained = WideParameter(session);
    for (int64_t i = 0; i < kNumel; ++i) EXPECT_EQ(trained[i], Fine(i) - 0x1p-44);
    ASSERT_OK(session->ReadParameters(0, [](int, absl::Span<const float> values) {
      for (const float value : values) EXPECT_EQ(value, 0.375f);
    }));
  });
}

TEST_F(Fp64Test, SavedTensorsAreF64) {
  const std::string path = absl::StrCat(testing::TempDir(), "/fp64.safetensors");
  Run([&](Session* session) { ASSERT_OK(session->Save(path)); });
  ASSERT_OK_AND_ASSIGN(const std::vector<LoadedTensor> tensors, ReadModelFile(path));
  ASSERT_EQ(tensors.size(), 2);
  for (const LoadedTensor& tensor : tensors) {
    if (tensor.stored.dtype == DType::kFp32) {
      EXPECT_EQ(tensor.values, std::vector<float>(5, 0.5f));
      continue;
    }
    ASSERT_EQ(tensor.stored.dtype, DType::kFp64);
    ASSERT_EQ(tensor.values64.size(), kNumel);
    for (int64_t i = 0; i < kNumel; ++i) EXPECT_EQ(tensor.values64[i], Fine(i));
  }
}

}  // namespace
}  // namespace tessera
