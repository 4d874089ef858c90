// Trains the toy model as one rank on an in-process fake GPU (fake_gpu.h) and saves it. Prints "step N"
// before each step, "done" at the end. Before step --pause-at it waits until --resume-file exists.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "base/fault_point.h"
#include "client/executor/host_executor.h"
#include "tessera/session.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/toy_training.h"

namespace tessera {
namespace {

absl::Status Train(const SessionOptions& options, int64_t steps, int64_t pause_at,
                   const std::string& resume_file, const std::string& save) {
  auto device = testing_support::MakeFakeGpuDevice(0);
  if (!device.ok()) return device.status();
  auto session = Session::Open(options);
  absl::Status status = session.status();
  while (status.ok() && (*session)->next_step() <= steps) {
    const int64_t step = (*session)->next_step();
    printf("step %ld\n", static_cast<long>(step));
    fflush(stdout);
    while (step == pause_at && access(resume_file.c_str(), F_OK) != 0) usleep(1000);
    status = testing_support::TrainToyOn(session->get(), device->get(), step);
  }
  while (status.ok()) {
    status = (*session)->Save(save);
    if (!absl::IsAborted(status)) break;
    status = (*session)->Recover();
  }
  return status;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::SessionOptions options;
  int64_t steps = 1, pause_at = 0;
  std::string save, resume_file;
  CLI::App app;
  app.add_option("--coordinator", options.coordinator_address)->required();
  app.add_option("--worker", options.worker_address)->required();
  app.add_option("--rank", options.rank)->required();
  app.add_option("--world-size", options.config.world_size)->required();
  app.add_option("--steps", steps)->required();
  app.add_option("--save", save)->required();
  app.add_option("--pause-at", pause_at);
  app.add_option("--resume-file", resume_file);
  app.add_flag("--cpu-offload", options.config.cpu_offload);
  app.add_flag("--replace", options.wait_if_attached);
  bool host_executor = false;
  app.add_flag("--host-executor", host_executor);
  std::string faults;
  app.add_option("--fault-points", faults);
  CLI11_PARSE(app, argc, argv);
  if (!tessera::ArmFaultPointsFromFlag(faults).ok()) return 2;
  if (host_executor) {
    options.host_executor = tessera::RunExecutorHere({tessera::testing_support::MakeFakeGpuDevice});
  }
  options.job_id = "toy";
  options.model = tessera::testing_support::ToyModel(3);
  options.config.max_gradient_norm = 1.0;
  options.make_device = tessera::testing_support::MakeFakeGpuDevice;
  const absl::Status status = tessera::Train(options, steps, pause_at, resume_file, save);
  if (!status.ok()) {
    fprintf(stderr, "trainer %d: %s\n", options.rank, status.ToString().c_str());
    return 1;
  }
  puts("done");
  return 0;
}
