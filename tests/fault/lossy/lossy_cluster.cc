#include "tests/fault/lossy/lossy_cluster.h"

#include <signal.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"

namespace tessera {

using testing_support::Eventually;
using testing_support::ReadFile;

void LossyCluster::StartLayer(const std::string& target, int pack_size, Layer* layer,
                              const std::string& socket) {
  static int num_layers = 0;
  const std::string name = absl::StrCat(folder_, "/layer", ++num_layers);
  const std::string port_file = name + ".port";
  layer->log = name + ".log";
  auto started = demo::ChildProcess::Start(
      {"tests/fault/lossy/lossy_proxy", target, socket.empty() ? "127.0.0.1:0" : socket, port_file,
       absl::StrCat(GetParam()), absl::StrCat(pack_size)},
      layer->log);
  ASSERT_OK(started);
  layer->process = *std::move(started);
  int port = 0;
  ASSERT_TRUE(Eventually([&] { return absl::SimpleAtoi(ReadFile(port_file), &port); }));
  layer->address = socket.empty() ? absl::StrCat("127.0.0.1:", port) : socket;
}

void LossyCluster::StartLayer(int pack_size) {
  ASSERT_NO_FATAL_FAILURE(StartLayer(coordinator_address(), pack_size, &layer_));
  proxy_address_ = layer_.address;
}

std::string LossyCluster::End(Layer* layer) {
  layer->process->Kill(SIGTERM);
  layer->process->Wait();
  return ReadFile(layer->log);
}

SessionOptions LossyCluster::ToyOptions() const {
  SessionOptions options;
  options.coordinator_address = dialled_address();
  options.worker_address = worker_address();
  options.job_id = "toy";
  options.model = testing_support::ToyModel(3);
  options.config.world_size = kWorldSize;
  options.operation_timeout = absl::Seconds(60);
  return options;
}

void LossyCluster::ExpectEveryFate(const std::string& described, const std::string& method) {
  for (const absl::string_view line : absl::StrSplit(described, '\n')) {
    if (!absl::StartsWith(line, absl::StrCat(method, ": "))) continue;
    EXPECT_FALSE(absl::StrContains(line, ", 0 ")) << line;
    return;
  }
  ADD_FAILURE() << "no call of " << method << " passed the layer:\n" << described;
}

}  // namespace tessera
