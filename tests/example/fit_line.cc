// Two ranks, threads of one process, fit y = 3x + 1 without libtorch: fit_line STEPS MODEL_FILE
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tessera/local_cluster.h"
#include "tessera/session.h"

// Forward and backward of one sample, by hand. Unit 0 has the weight and the bias.
absl::Status TakeStep(tessera::Session* session) {
  absl::Status status = session->Unshard(0);  // Returns once the unit is whole.
  if (!status.ok()) return status;
  const float weight = *reinterpret_cast<const float*>(session->parameter(0, 0));
  const float bias = *reinterpret_cast<const float*>(session->parameter(0, 1));
  status = session->Reshard(0);  // Now they cannot be read.
  if (!status.ok()) return status;
  const float x = static_cast<float>(session->next_step() % 5 + session->rank());
  const float error = weight * x + bias - (3 * x + 1);
  const std::vector<float> of_weight = {2 * error * x};
  const std::vector<float> of_bias = {2 * error};
  status = session->AddGradient(0, 0, of_weight);
  if (status.ok()) status = session->AddGradient(0, 1, of_bias);
  if (status.ok()) status = session->Reduce(0);            // To the mean over the ranks.
  return status.ok() ? session->Step().status() : status;  // On all ranks or on none.
}

absl::Status Train(const tessera::SessionOptions& options, int64_t steps, const std::string& path) {
  absl::StatusOr<std::unique_ptr<tessera::Session>> session = tessera::Session::Open(options);
  if (!session.ok()) return session.status();
  absl::Status status;
  if (!(*session)->initialized()) {  // A new job. Each rank keeps its slice of these values.
    status = (*session)->Initialize([](int, int, tessera::Values values) {
      for (float& value : values.as<float>()) value = 0;
    });
  }
  while (status.ok() && (*session)->next_step() <= steps)
    status = (*session)->RunStep([&] { return TakeStep(session->get()); });
  return status.ok() ? (*session)->Save(path) : status;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: fit_line STEPS MODEL_FILE\n";
    return 2;
  }
  tessera::LocalCluster::Options devices;
  devices.num_devices = 2;
  auto cluster = tessera::LocalCluster::Start(devices);
  if (!cluster.ok()) {
    std::cerr << cluster.status() << "\n";
    return 1;
  }
  tessera::SessionOptions options;
  options.coordinator_address = (*cluster)->coordinator_address();
  options.worker_address = (*cluster)->worker_address();
  options.job_id = "fit-line";
  tessera::UnitSpec root;
  root.name = "root";
  root.parameters.push_back({"weight", {1}, tessera::DType::kFp32});
  root.parameters.push_back({"bias", {1}, tessera::DType::kFp32});
  options.model.units.push_back(root);
  options.config.world_size = devices.num_devices;
  options.config.optimizer = tessera::OptimizerKind::kSgd;
  options.config.groups[0].learning_rate = 0.02;
  std::vector<absl::Status> outcomes(devices.num_devices);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < devices.num_devices; ++rank) {
    options.rank = rank;
    ranks.emplace_back([&outcome = outcomes[rank], options, argv] {
      outcome = Train(options, std::atoll(argv[1]), argv[2]);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const absl::Status& outcome : outcomes) {
    if (outcome.ok()) continue;
    std::cerr << outcome << "\n";
    return 1;
  }
  return 0;
}
