#include "tests/gpu/gpu_step_bench.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cpp/device_gradients.h"
#include "client/cpp/local_cluster.h"
#include "client/cpp/session.h"
#include "client/executor/host_executor.h"
#include "tests/gpu/step_work.h"

namespace tessera {
namespace gpu_check {
namespace {

// Of the plain step, at least so fast: 1.02 of its time at most.
constexpr double kSpeedAim = 0.98;

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A job of one rank that does a step of the model. Not moved: the session knows the device.
class ShardedTraining {
 public:
  // `model` is on the same GPU; it and `cluster` outlive this.
  static absl::StatusOr<std::unique_ptr<ShardedTraining>> Open(SessionOptions options,
                                                               ModelWork* model) {
    ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Open(options));
    RETURN_IF_ERROR(session->Initialize([](int unit, int, Values values) {
      for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i)
        values.as<float>()[i] = InitialElement(unit, i);
    }));
    return std::make_unique<ShardedTraining>(std::move(session), model);
  }
  ShardedTraining(std::unique_ptr<Session> session, ModelWork* model)
      : session_(std::move(session)), model_(model) {}

  absl::Status Step() {
    DeviceGradients gradients(session_.get());
    const int num_units = session_->num_units();
    for (int u = 0; u < num_units; ++u) {
      RETURN_IF_ERROR(session_->Unshard(u));
      model_->Forward(session_->parameters(u));
      gradients.AfterStream(model_->stream());
      RETURN_IF_ERROR(session_->Reshard(u));
    }
    for (int u = num_units - 1; u >= 0; --u) {
      RETURN_IF_ERROR(session_->Unshard(u));
      model_->Backward(u, session_->parameters(u));
      gradients.AfterStream(model_->stream());
      RETURN_IF_ERROR(gradients.Add(u, 0, model_->gradient(u),
                                    session_->layout().units[u].flat.parameters()[0].numel,
                                    DType::kBf16));
      RETURN_IF_ERROR(session_->Reshard(u));
      RETURN_IF_ERROR(session_->Reduce(u));
    }
    return session_->Step().status();
  }
  // Whether each unit has these parameters, bit for bit.
  absl::Status Compare(const PlainTraining& plain) {
    for (int u = 0; u < session_->num_units(); ++u) {
      const int64_t numel = session_->layout().units[u].flat.parameters()[0].numel;
      std::vector<uint16_t> expected(numel), found(numel);
      RETURN_IF_ERROR(session_->Unshard(u));
      CudaRankKernels& kernels = model_->kernels();
      kernels.Copy(found.data(), session_->parameter(u, 0), numel * sizeof(uint16_t));
      kernels.Copy(expected.data(), plain.halves(u), numel * sizeof(uint16_t));
      RETURN_IF_ERROR(kernels.Finish());
      RETURN_IF_ERROR(session_->Reshard(u));
      if (found != expected)
        return absl::DataLossError(absl::StrCat("unit ", u, " has not the plain one's bits"));
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<Session> session_;
  ModelWork* const model_;
};

SessionOptions JobOptions(const StepBenchOptions& options) {
  SessionOptions job;
  job.config.compute_dtype = job.config.reduce_dtype = DType::kBf16;
  job.config.optimizer = OptimizerKind::kAdamW;
  for (int u = 0; u < options.num_units; ++u) {
    const std::string name = absl::StrCat("unit", u);
    job.model.units.push_back({name, {{name + ".weight", {options.unit_numel}, DType::kFp32}}});
  }
  return job;
}

struct Way {
  std::string name;
  std::function<absl::Status()> step;
  std::vector<double> seconds = {};  // A step, by round.
};

absl::Status Measure(const StepBenchOptions& options, std::vector<Way>* ways) {
  for (int round = 0; round < options.warm_up_rounds + options.rounds; ++round) {
    for (Way& way : *ways) {
      const double begin = SteadySeconds();
      for (int step = 0; step < options.steps_per_round; ++step)
        RETURN_IF_ERROR(Annotate(way.step(), way.name));
      if (round < options.warm_up_rounds) continue;
      way.seconds.push_back((SteadySeconds() - begin) / options.steps_per_round);
    }
  }
  return absl::OkStatus();
}

BenchRow RowOf(const Way& way, const Way& plain) {
  if (&way == &plain) return RowOfSeconds(way.name, way.seconds);
  return RowOfSeconds(way.name, way.seconds, plain.name, plain.seconds, kSpeedAim);
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> BenchSteps(const testing_support::GpuUnderTest& gpu,
                                                 const StepBenchOptions& options) {
  const StepShape shape = {options.num_units, options.unit_numel, options.forward_passes};
  LocalCluster::Options cluster_options;
  cluster_options.num_devices = 2;
  cluster_options.executor_binary = gpu.executor_binary;
  cluster_options.device_memory = gpu.memory;
  ASSIGN_OR_RETURN(const auto cluster, LocalCluster::Start(cluster_options));
  ASSIGN_OR_RETURN(const auto device, gpu.make_device(0));
  ASSIGN_OR_RETURN(const auto plain, PlainTraining::Create(device.get(), shape, ParamGroup()));

  SessionOptions job = JobOptions(options);
  job.coordinator_address = cluster->coordinator_address();
  job.worker_address = cluster->worker_address();
  job.make_device = gpu.make_device;
  job.job_id = "apart";
  ASSIGN_OR_RETURN(const auto apart, ShardedTraining::Open(job, &plain->model()));
  job.job_id = "together";
  ExecutorMachine machine;
  machine.make_device = gpu.make_device;
  job.host_executor = RunExecutorHere(machine);
  ASSIGN_OR_RETURN(const auto together, ShardedTraining::Open(job, &plain->model()));

  std::vector<Way> ways;
  ways.push_back({"step without a job", [&] { return plain->Step(); }});
  ways.push_back({"step of one rank, executor a process", [&] { return apart->Step(); }});
  ways.push_back({"step of one rank, executor in the trainer", [&] { return together->Step(); }});
  RETURN_IF_ERROR(Measure(options, &ways));
  for (ShardedTraining* of_job : {apart.get(), together.get()})
    RETURN_IF_ERROR(of_job->Compare(*plain));
  std::vector<BenchRow> rows;
  for (const Way& way : ways) rows.push_back(RowOf(way, ways.front()));
  return rows;
}

}  // namespace gpu_check
}  // namespace tessera
