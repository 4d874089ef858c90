// A program that was built against an install tree: main TREE C_PROGRAM FOLDER
// Trains one rank, whose executor is a program of the tree, saves a checkpoint in FOLDER, loads it in
// a job of another size, reads its live state, and runs C_PROGRAM on the same cluster.
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tessera.h"
#include "tessera/checkpoint.h"
#include "tessera/in_process_executor.h"
#include "tessera/live_reader.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"

namespace {

constexpr int64_t kElements = 1000;

tessera::SessionOptions Options(const tessera::LocalCluster& cluster, const std::string& job) {
  tessera::SessionOptions options;
  options.coordinator_address = cluster.coordinator_address();
  options.worker_address = cluster.worker_address();
  options.job_id = job;
  tessera::UnitSpec root;
  root.name = "root";
  root.parameters.push_back({"w", {kElements}, tessera::DType::kFp32});
  options.model.units.push_back(root);
  options.config.optimizer = tessera::OptimizerKind::kSgd;
  options.config.groups[0].learning_rate = 0.5;
  return options;
}

// The loss is the sum of w^2 / 2, so that its gradient is w and each step halves it.
absl::Status TakeStep(tessera::Session* session) {
  absl::Status status = session->Unshard(0);
  if (!status.ok()) return status;
  const float* w = reinterpret_cast<const float*>(session->parameter(0, 0));
  const std::vector<float> gradient(w, w + kElements);
  status = session->Reshard(0);
  if (status.ok()) status = session->AddGradient(0, 0, gradient);
  if (status.ok()) status = session->Reduce(0);
  return status.ok() ? session->Step().status() : status;
}

absl::Status Expect(tessera::Session* session, float value) {
  absl::Status status = session->Unshard(0);
  if (!status.ok()) return status;
  const float* w = reinterpret_cast<const float*>(session->parameter(0, 0));
  for (int64_t i = 0; i < kElements; ++i) {
    if (std::abs(w[i] - value) > 1e-6) return absl::InternalError("a parameter has another value");
  }
  return session->Reshard(0);
}

absl::Status TrainAndSave(const tessera::LocalCluster& cluster, const std::string& path) {
  auto session = tessera::Session::Open(Options(cluster, "first"));
  if (!session.ok()) return session.status();
  absl::Status status = (*session)->Initialize([](int, int, tessera::Values values) {
    for (float& value : values.as<float>()) value = 1;
  });
  for (int step = 0; status.ok() && step < 3; ++step)
    status = (*session)->RunStep([&] { return TakeStep(session->get()); });
  if (status.ok()) status = Expect(session->get(), 0.125);
  return status.ok() ? tessera::SaveCheckpoint(session->get(), path) : status;
}

absl::Status Load(const tessera::LocalCluster& cluster, const std::string& path) {
  tessera::SessionOptions options = Options(cluster, "second");
  options.host_executor = tessera::InProcessExecutor();
  auto session = tessera::Session::Open(options);
  if (!session.ok()) return session.status();
  auto loaded = tessera::LoadCheckpoint(session->get(), path);
  if (!loaded.ok()) return loaded.status();
  if (loaded->step != 3) return absl::InternalError("the checkpoint is of another step");
  return Expect(session->get(), 0.125);
}

absl::Status ReadLive(const tessera::LocalCluster& cluster) {
  tessera::LiveReaderOptions options;
  options.coordinator_address = cluster.coordinator_address();
  auto reader = tessera::LiveReader::Open(options);
  if (!reader.ok()) return reader.status();
  tessera::LiveQuery query;
  query.job_id = "first";
  std::vector<float> w(kElements);
  auto version = (*reader)->Read(query, [&](const tessera::LiveEntry& entry) {
    return absl::Span<char>(reinterpret_cast<char*>(w.data()), entry.size_bytes);
  });
  if (!version.ok()) return version.status();
  return w[kElements - 1] == 0.125 ? absl::OkStatus()
                                   : absl::InternalError("live state has another value");
}

absl::Status Run(const std::string& tree, const std::string& c_program, const std::string& folder) {
  tessera::LocalCluster::Options options;
  options.num_devices = 3;
  options.executor_binary = tree + "/bin/tessera-executor";
  auto cluster = tessera::LocalCluster::Start(options);
  if (!cluster.ok()) return cluster.status();
  absl::Status status = TrainAndSave(**cluster, folder + "/checkpoint");
  if (status.ok()) status = Load(**cluster, folder + "/checkpoint");
  if (status.ok()) status = ReadLive(**cluster);
  if (!status.ok()) return status;
  const std::string command =
      c_program + " " + (*cluster)->coordinator_address() + " " + (*cluster)->worker_address();
  return std::system(command.c_str()) == 0 ? absl::OkStatus()
                                           : absl::InternalError("the program in C failed");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  std::cout << "tessera " << tessera_version() << "\n";
  const absl::Status status = Run(argv[1], argv[2], argv[3]);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
