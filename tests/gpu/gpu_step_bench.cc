#include "tests/gpu/gpu_step_bench.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "client/executor/host_executor.h"
#include "tests/gpu/sharded_work.h"
#include "tests/gpu/step_work.h"

namespace tessera {
namespace gpu_check {
namespace {

// Of the plain step, at least so fast: its time may be so much longer.
constexpr double kSpeedAim = 1 / 1.005, kSpeedGate = 1 / 1.02;

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
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
  BenchRow row = RowOfSeconds(way.name, way.seconds, plain.name, plain.seconds, kSpeedAim);
  row.gate = kSpeedGate;
  return row;
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> BenchSteps(const testing_support::GpuUnderTest& gpu,
                                                 const StepBenchOptions& options) {
  const StepShape shape = {options.num_units, options.unit_numel, options.forward_passes};
  ASSIGN_OR_RETURN(const auto cluster, StartBenchCluster(gpu));
  ASSIGN_OR_RETURN(const auto device, gpu.make_device(0));
  ASSIGN_OR_RETURN(const auto plain, PlainTraining::Create(device.get(), shape, ParamGroup()));

  SessionOptions job = ShardedJob(gpu, *cluster, shape);
  job.job_id = "apart";
  ASSIGN_OR_RETURN(const auto apart, ShardedTraining::Open(job, &plain->model(), InitialElement));
  job.job_id = "together";
  ExecutorMachine machine;
  machine.make_device = gpu.make_device;
  job.host_executor = RunExecutorHere(machine);
  ASSIGN_OR_RETURN(const auto together,
                   ShardedTraining::Open(job, &plain->model(), InitialElement));

  std::vector<Way> ways;
  ways.push_back({"step without a job", [&] { return plain->Step(); }});
  ways.push_back({"step of one rank, executor a process", [&] { return apart->Step().status(); }});
  ways.push_back(
      {"step of one rank, executor in the trainer", [&] { return together->Step().status(); }});
  RETURN_IF_ERROR(Measure(options, &ways));
  for (ShardedTraining* of_job : {apart.get(), together.get()})
    RETURN_IF_ERROR(of_job->Compare(*plain));
  std::vector<BenchRow> rows;
  for (const Way& way : ways) rows.push_back(RowOf(way, ways.front()));
  return rows;
}

}  // namespace gpu_check
}  // namespace tessera
