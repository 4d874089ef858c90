#include "tests/gpu/launch_latency.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "client/executor/host_executor.h"
#include "tessera/device_gradients.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/gpu/wrapped_device.h"
#include "worker/executor/executor_machine.h"
#include "worker/executor/executor_program.h"

namespace tessera {
namespace gpu_check {
namespace {

int64_t SteadyNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// When the last reduction was launched, by SteadyNanos, in a file that processes share.
class LaunchTime {
 public:
  static absl::StatusOr<std::shared_ptr<LaunchTime>> Open(const std::string& path) {
    const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file.valid() || ftruncate(file.get(), sizeof(std::atomic<int64_t>)) != 0)
      return ErrnoStatus(errno, path);
    void* const memory = mmap(nullptr, sizeof(std::atomic<int64_t>), PROT_READ | PROT_WRITE,
                              MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) return ErrnoStatus(errno, path);
    return std::make_shared<LaunchTime>(static_cast<std::atomic<int64_t>*>(memory));
  }
  explicit LaunchTime(std::atomic<int64_t>* nanos) : nanos_(nanos) {}
  ~LaunchTime() { munmap(nanos_, sizeof(*nanos_)); }
  LaunchTime(const LaunchTime&) = delete;
  LaunchTime& operator=(const LaunchTime&) = delete;

  void Set() { nanos_->store(SteadyNanos()); }
  int64_t nanos() const { return nanos_->load(); }

 private:
  std::atomic<int64_t>* const nanos_;
};

class TimedKernels : public WrappedKernels {
 public:
  TimedKernels(std::unique_ptr<RankKernels> own, std::shared_ptr<LaunchTime> launched)
      : WrappedKernels(std::move(own)), launched_(std::move(launched)) {}
  void Reduce(absl::Span<const void* const> inputs, DType input_dtype, int64_t count, double scale,
              bool accumulate, host::SumOutput output, bool measure) override {
    own()->Reduce(inputs, input_dtype, count, scale, accumulate, output, measure);
    launched_->Set();
  }

 private:
  const std::shared_ptr<LaunchTime> launched_;
};

MakeRankDevice Timed(const MakeRankDevice& make, const std::shared_ptr<LaunchTime>& launched) {
  return WrapDevices(make, [launched](std::unique_ptr<RankKernels> own) {
    return std::make_unique<TimedKernels>(std::move(own), launched);
  });
}

// Each step has one reduction, of the job's only unit. Returns seconds, by step.
absl::StatusOr<std::vector<double>> Measure(const SessionOptions& job, RankDevice* device,
                                            const LaunchTime& launched,
                                            const LatencyOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Open(job));
  RETURN_IF_ERROR(session->Initialize([](int, int, Values values) {
    for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) values.as<float>()[i] = 1;
  }));
  ASSIGN_OR_RETURN(const std::unique_ptr<RankKernels> kernels, device->CreateKernels({}));
  const int64_t bytes = options.numel * static_cast<int64_t>(sizeof(float));
  ASSIGN_OR_RETURN(const Buffer gradient, device->Allocate(bytes));
  kernels->Clear(gradient.data(), bytes);
  RETURN_IF_ERROR(kernels->Finish());
  std::vector<double> seconds;
  for (int step = 0; step < options.warm_up_steps + options.steps; ++step) {
    RETURN_IF_ERROR(session->Unshard(0));
    DeviceGradients gradients(session.get());
    RETURN_IF_ERROR(gradients.Add(0, 0, gradient.data(), options.numel, DType::kFp32));
    RETURN_IF_ERROR(session->Reshard(0));
    RETURN_IF_ERROR(gradients.Finish());
    const int64_t begin = SteadyNanos();
    RETURN_IF_ERROR(session->Reduce(0));
    RETURN_IF_ERROR(session->Step().status());  // Then it was launched.
    const int64_t nanos = launched.nanos() - begin;
    if (nanos <= 0) return absl::InternalError("a reduction was launched before it was asked for");
    if (step >= options.warm_up_steps) seconds.push_back(static_cast<double>(nanos) * 1e-9);
  }
  return seconds;
}

BenchRow RowOf(const std::string& name, std::vector<double> seconds) {
  BenchRow row;
  row.name = name;
  row.unit = "us";
  for (double& value : seconds) value *= 1e6;
  row.value = bench::QuartilesOf(std::move(seconds));
  return row;
}

absl::StatusOr<std::vector<BenchRow>> BenchIn(const testing_support::GpuUnderTest& gpu,
                                              const LatencyOptions& options,
                                              const std::string& folder) {
  const std::string file = folder + "/launched", script = folder + "/executor";
  std::ofstream text(script);
  text << "#!/bin/sh\nexec '" << options.program << "' --as-executor '" << file << "' \"$@\"\n";
  text.close();
  if (!text || chmod(script.c_str(), 0700) != 0) return ErrnoStatus(errno, script);
  ASSIGN_OR_RETURN(const std::shared_ptr<LaunchTime> launched, LaunchTime::Open(file));

  LocalCluster::Options cluster_options;
  cluster_options.num_devices = 2;
  cluster_options.executor_binary = script;
  cluster_options.device_memory = gpu.memory;
  ASSIGN_OR_RETURN(const auto cluster, LocalCluster::Start(cluster_options));
  ASSIGN_OR_RETURN(const auto device, gpu.make_device(0));
  SessionOptions job;
  job.coordinator_address = cluster->coordinator_address();
  job.worker_address = cluster->worker_address();
  job.make_device = gpu.make_device;
  job.model.units.push_back({"unit", {{"unit.weight", {options.numel}, DType::kFp32}}});
  job.job_id = "apart";
  ASSIGN_OR_RETURN(std::vector<double> apart, Measure(job, device.get(), *launched, options));
  job.job_id = "together";
  ExecutorMachine machine;
  machine.make_device = Timed(gpu.make_device, launched);
  job.host_executor = RunExecutorHere(machine);
  ASSIGN_OR_RETURN(std::vector<double> together, Measure(job, device.get(), *launched, options));
  return std::vector<BenchRow>{
      RowOf("reduction to its kernel's launch, executor a process", std::move(apart)),
      RowOf("reduction to its kernel's launch, executor in the trainer", std::move(together))};
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> BenchLaunchLatency(const testing_support::GpuUnderTest& gpu,
                                                         const LatencyOptions& options) {
  std::string folder = (std::filesystem::temp_directory_path() / "latency.XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return ErrnoStatus(errno, folder);
  const absl::Cleanup remove = [&folder] {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  };
  return BenchIn(gpu, options, folder);
}

std::optional<int> RunLatencyExecutor(int argc, char** argv, const MakeRankDevice& make) {
  if (argc < 3 || std::string(argv[1]) != "--as-executor") return std::nullopt;
  const absl::StatusOr<std::shared_ptr<LaunchTime>> launched = LaunchTime::Open(argv[2]);
  if (!launched.ok()) return 1;
  ExecutorMachine machine;
  machine.make_device = Timed(make, *launched);
  return RunExecutorProgram(argc - 2, argv + 2, machine);
}

}  // namespace gpu_check
}  // namespace tessera
