// How the costs of an attached model grow with its parameters and units: each line has twice the
// parameters, or units, of the one before, and the ratio of their costs. 2 is linear.
//
//   bazel run //tests/bench:scale_bench -- --parameters 100000
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/command_line.h"
#include "base/log.h"
#include "checkpoint/open_model.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tessera/stored_model.h"
#include "tessera/torch/sharded_model.h"
#include "tessera/torch/units.h"

namespace tessera {
namespace {

constexpr int kSteps = 5;

double SecondsOf(const std::function<void()>& body) {
  const absl::Time begin = absl::Now();
  body();
  return absl::ToDoubleSeconds(absl::Now() - begin);
}

double MedianOf(const std::function<void()>& body) {
  std::vector<double> seconds;
  for (int i = 0; i < kSteps; ++i) seconds.push_back(SecondsOf(body));
  std::nth_element(seconds.begin(), seconds.begin() + kSteps / 2, seconds.end());
  return seconds[kSteps / 2];
}

// A chain over `count` parameters of two elements.
struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      links.push_back(register_parameter(absl::StrCat("link", i), torch::full({2}, 0.5)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const torch::Tensor& link : links) x = x + link;
    return x;
  }
  std::vector<torch::Tensor> links;
};
using Chain = Sharded<ChainImpl>;

// `count` units of four parameters.
struct UnitsImpl : torch::nn::Module {
  explicit UnitsImpl(int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      chains.push_back(register_module(absl::StrCat("unit", i), std::make_shared<Chain>(4)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& chain : chains) x = chain->forward(x);
    return x;
  }
  std::vector<std::shared_ptr<Chain>> chains;
};

struct Costs {
  static constexpr const char* kNames[] = {"plan", "attach", "plain step", "step",    "save",
                                           "load", "list",   "checkpoint", "its load"};
  double seconds[std::size(kNames)] = {};
};

template <typename M>
Costs Measure(LocalCluster& cluster, int64_t count, const std::string& folder) {
  Costs costs;
  const torch::Tensor x = torch::ones({2});
  const auto loss = [&x](M& net) { return net.forward(x).square().mean(); };
  {
    auto plain = std::make_shared<M>(count);
    costs.seconds[2] = MedianOf([&] {
      for (torch::Tensor& parameter : plain->parameters()) parameter.mutable_grad().reset();
      loss(*plain).backward();
    });
  }
  auto net = std::make_shared<M>(count);
  SessionOptions options;
  options.coordinator_address = cluster.coordinator_address();
  options.worker_address = cluster.worker_address();
  options.job_id = absl::StrCat("scale-", sizeof(M), "-", count);
  options.config.optimizer = OptimizerKind::kAdamW;
  costs.seconds[0] = SecondsOf([&] { TESSERA_CHECK(PlanUnits(*net, options.config).ok()); });
  std::unique_ptr<ShardedModel> model;
  costs.seconds[1] = SecondsOf([&] {
    auto attached = ShardedModel::Attach(net, options);
    if (!attached.ok()) std::fprintf(stderr, "%s\n", attached.status().ToString().c_str());
    TESSERA_CHECK(attached.ok());
    model = *std::move(attached);
  });
  costs.seconds[3] = MedianOf([&] {
    TESSERA_CHECK(model
                      ->RunStep([&] {
                        loss(*net).backward();
                        return model->Step();
                      })
                      .ok());
  });
  const std::string path = folder + "/model.safetensors";
  costs.seconds[4] = SecondsOf([&] { TESSERA_CHECK(model->session().Save(path).ok()); });
  costs.seconds[5] =
      SecondsOf([&] { TESSERA_CHECK(LoadModel(&model->session(), path).status().ok()); });
  costs.seconds[6] = SecondsOf([&] {
    const auto stored = OpenModel(path);
    TESSERA_CHECK(stored.ok() && !(*stored)->tensors().empty());
  });
  const std::string checkpoint = folder + "/checkpoint";
  costs.seconds[7] =
      SecondsOf([&] { TESSERA_CHECK(SaveCheckpoint(&model->session(), checkpoint).ok()); });
  costs.seconds[8] = SecondsOf(
      [&] { TESSERA_CHECK(LoadCheckpoint(&model->session(), checkpoint).status().ok()); });
  return costs;
}

template <typename M>
void Show(const char* what, int64_t most, const std::string& folder) {
  std::printf("%-12s", what);
  for (const char* name : Costs::kNames) std::printf("  %10s       ", name);
  std::printf("\n");
  Costs before;
  for (int64_t count = most >> 4; count <= most; count *= 2) {
    LocalCluster::Options options;
    options.num_devices = 1;
    auto cluster = LocalCluster::Start(options);
    TESSERA_CHECK(cluster.ok());
    const Costs costs = Measure<M>(**cluster, count, folder);
    std::printf("%-12lld", static_cast<long long>(count));
    for (size_t i = 0; i < std::size(Costs::kNames); ++i) {
      std::printf("  %8.3f s", costs.seconds[i]);
      before.seconds[i] > 0 ? std::printf(" x%-5.1f", costs.seconds[i] / before.seconds[i])
                            : std::printf("       ");
    }
    std::printf("\n");
    std::fflush(stdout);
    before = costs;
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  int64_t parameters = 100000, units = 10000;
  std::string folder = "/tmp";
  CLI::App app("How the costs of a model grow with its parameters and units", "scale_bench");
  app.add_option("--parameters", parameters, "The most, in one unit")->capture_default_str();
  app.add_option("--units", units, "The most")->capture_default_str();
  app.add_option("--folder", folder, "Where models are saved")->capture_default_str();
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  TESSERA_CHECK(tessera::SetLogLevel("warning").ok());
  torch::set_num_threads(1);
  folder += "/tessera_scale_bench";
  std::filesystem::create_directories(folder);
  tessera::Show<tessera::Chain>("parameters", parameters, folder);
  tessera::Show<tessera::Sharded<tessera::UnitsImpl>>("units", units, folder);
  std::filesystem::remove_all(folder);
}
