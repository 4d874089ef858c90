// A job of 128 ranks, on one worker and on four, whose parameters no number of ranks divides or are
// smaller than the world: gathered twice, as for forward and backward, they are the originals, and
// the gradients' mean is that of all ranks.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/reshard_after_forward.h"
#include "tessera/local_cluster.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::InitialValue;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kRanks = 128, kKeptBy = 8;

// A unit of everything, and two of little: 17 elements leave most ranks with padding alone.
ModelSpec UnevenModel() {
  ModelSpec model;
  model.units.push_back({"all",
                         {{"a", {17, 257}, DType::kFp32},
                          {"b", {17}, DType::kFp32},
                          {"c", {64, 312}, DType::kFp32},
                          {"d", {64}, DType::kFp32},
                          {"e", {64, 64}, DType::kFp32},
                          {"f", {512, 64}, DType::kFp32},
                          {"g", {256}, DType::kFp32},
                          {"h", {64, 297}, DType::kFp32}}});
  model.units.push_back({"few", {{"few.w", {17}, DType::kFp32}}});
  model.units.push_back({"one", {{"one.w", {1}, DType::kFp32}}});
  return model;
}

absl::Status ExpectAll(const std::string& what, absl::Span<const float> values,
                       const std::function<float(int64_t element)>& expected) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == expected(i)) continue;
    return absl::InternalError(
        absl::StrCat(what, "[", i, "] is ", values[i], ", not ", expected(i)));
  }
  return absl::OkStatus();
}

absl::Status ExpectOriginals(Session* session, int unit) {
  const auto& parameters = session->layout().units[unit].flat.parameters();
  for (int p = 0; p < static_cast<int>(parameters.size()); ++p) {
    const auto* values = reinterpret_cast<const float*>(session->parameter(unit, p));
    RETURN_IF_ERROR(ExpectAll(parameters[p].spec.name,
                              absl::MakeConstSpan(values, parameters[p].numel),
                              [&](int64_t i) { return InitialValue(unit, p, i); }));
  }
  return absl::OkStatus();
}

// `ahead`: all units are asked for before the first one is read.
absl::Status ReadAllUnits(Session* session, bool ahead) {
  for (int unit = 0; ahead && unit < session->num_units(); ++unit)
    RETURN_IF_ERROR(session->UnshardAsync(unit));
  for (int unit = 0; unit < session->num_units(); ++unit) {
    RETURN_IF_ERROR(session->Unshard(unit));
    RETURN_IF_ERROR(ExpectOriginals(session, unit));
    RETURN_IF_ERROR(session->Reshard(unit));
  }
  return absl::OkStatus();
}

// Each rank gives its number as every element's gradient.
absl::Status ReduceRankNumbers(Session* session) {
  for (int unit = 0; unit < session->num_units(); ++unit) {
    const auto& parameters = session->layout().units[unit].flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const std::vector<float> gradient(parameters[p].numel, static_cast<float>(session->rank()));
      RETURN_IF_ERROR(session->AddGradient(unit, p, gradient));
    }
    RETURN_IF_ERROR(session->Reduce(unit));
  }
  absl::Status different;
  for (int unit = 0; unit < session->num_units(); ++unit) {
    RETURN_IF_ERROR(session->ReadGradients(unit, [&](int p, absl::Span<const float> values) {
      different.Update(ExpectAll(absl::StrCat("gradient of unit ", unit, ", parameter ", p), values,
                                 [](int64_t) { return (kRanks - 1) / 2.0f; }));
    }));
  }
  return different;
}

struct Case {
  const char* name;
  int num_workers;
  int reshard_group_size;  // 0: nobody keeps anything after forward.
};

class WideWorldTest : public testing::TestWithParam<Case> {};

TEST_P(WideWorldTest, GathersAreTheOriginalsAndReductionsTheMeanOfAllRanks) {
  LocalCluster::Options cluster_options;
  cluster_options.num_workers = GetParam().num_workers;
  cluster_options.num_devices = kRanks / GetParam().num_workers;
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(cluster_options));
  SessionOptions options = ToyOptions(*cluster, "wide", kRanks);
  options.model = UnevenModel();
  options.config.gradient_slots = 0;
  options.config.layout.shard_alignment_bytes = 0;  // A slice ends at any element.
  if (GetParam().reshard_group_size > 0) {
    ASSERT_OK(SetReshardAfterForward(GetParam().reshard_group_size, &options.config));
  }
  std::vector<std::string> workers;
  for (int rank = 0; rank < kRanks; ++rank)
    workers.push_back(cluster->worker_address(rank * GetParam().num_workers / kRanks));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options, workers));
  ASSERT_OK(team.RunAll([](Session* session) {
    return session->Initialize([](int unit, int parameter, absl::Span<float> values) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = InitialValue(unit, parameter, i);
    });
  }));
  EXPECT_EQ(team.session(0)->layout().units[1].shards.shard_numel(), 1) << "of 17 elements";
  ASSERT_OK(team.RunAll([](Session* session) {
    RETURN_IF_ERROR(ReadAllUnits(session, /*ahead=*/false));
    RETURN_IF_ERROR(ReadAllUnits(session, /*ahead=*/true));
    return ReduceRankNumbers(session);
  }));
}

INSTANTIATE_TEST_SUITE_P(Worlds, WideWorldTest,
                         testing::Values(Case{"OneWorker", 1, 0}, Case{"FourWorkers", 4, 0},
                                         Case{"FourWorkersThatKeepThem", 4, kKeptBy}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
