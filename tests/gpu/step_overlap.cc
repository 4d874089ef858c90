#include "tests/gpu/step_overlap.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/executor/host_executor.h"
#include "tests/gpu/sharded_work.h"

namespace tessera {
namespace gpu_check {
namespace {

constexpr char kCompute[] = "compute of a step, alone";

// The first element of each unit, and so of its gradient.
float InfinityAtFirst(int /*unit*/, int64_t i) {
  return i == 0 ? std::numeric_limits<float>::infinity() : 0;
}

// A model's work on parameters of no job.
class Compute {
 public:
  static absl::StatusOr<std::unique_ptr<Compute>> Create(RankDevice* device,
                                                         const StepShape& shape) {
    auto compute = std::make_unique<Compute>();
    ASSIGN_OR_RETURN(compute->model, ModelWork::Create(device, shape));
    std::vector<uint16_t> halves(shape.unit_numel);
    halves[0] = 0x7f80;  // Infinity in bf16.
    const int64_t size_bytes = shape.unit_numel * static_cast<int64_t>(sizeof(uint16_t));
    for (int u = 0; u < shape.num_units; ++u) {
      ASSIGN_OR_RETURN(Buffer unit, device->Allocate(size_bytes));
      compute->model->kernels().Copy(unit.data(), halves.data(), size_bytes);
      compute->halves.push_back(std::move(unit));
    }
    RETURN_IF_ERROR(compute->model->kernels().Finish());
    return compute;
  }
  absl::Status Step() {
    const int num_units = static_cast<int>(halves.size());
    for (int u = 0; u < num_units; ++u) model->Forward(halves[u].data());
    for (int u = num_units - 1; u >= 0; --u) model->Backward(u, halves[u].data());
    return model->kernels().Finish();
  }

  std::vector<Buffer> halves;
  std::unique_ptr<ModelWork> model;  // Before what it works on goes.
};

absl::Status SkippedStep(ShardedTraining* training, bool computes) {
  StepOptions options;
  options.skip_non_finite = true;
  ASSIGN_OR_RETURN(const StepResult result, training->Step(computes, options));
  if (result.skipped) return absl::OkStatus();
  return absl::InternalError("a step with an infinity was not skipped");
}

// Seconds of one, as a mean of so many.
absl::StatusOr<double> Seconds(int count, const std::function<absl::Status()>& step) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) RETURN_IF_ERROR(step());
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  return all.count() / count;
}

struct Way {
  std::string name;
  std::unique_ptr<ShardedTraining> training;
  std::vector<double> work = {}, both = {};
};

void AddRows(const Way& way, const std::vector<double>& compute, std::vector<BenchRow>* rows) {
  rows->push_back(RowOfSeconds(absl::StrCat("windows and reductions, ", way.name), way.work));
  rows->push_back(RowOfSeconds(absl::StrCat("compute beside them, ", way.name), way.both, kCompute,
                               compute, /*aim=*/0));
  BenchRow share;
  share.name = absl::StrCat("hidden share of the shorter, ", way.name);
  share.value = bench::QuartilesOf(HiddenShares(compute, way.work, way.both));
  rows->push_back(std::move(share));
}

}  // namespace

std::vector<double> HiddenShares(const std::vector<double>& compute,
                                 const std::vector<double>& work, const std::vector<double>& both) {
  std::vector<double> shares;
  for (size_t i = 0; i < both.size(); ++i)
    shares.push_back((compute[i] + work[i] - both[i]) / std::min(compute[i], work[i]));
  return shares;
}

absl::StatusOr<std::vector<BenchRow>> BenchStepOverlap(const testing_support::GpuUnderTest& gpu,
                                                       const StepBenchOptions& options) {
  const StepShape shape = {options.num_units, options.unit_numel, options.forward_passes};
  ASSIGN_OR_RETURN(const auto cluster, StartBenchCluster(gpu));
  ASSIGN_OR_RETURN(const auto device, gpu.make_device(0));
  ASSIGN_OR_RETURN(const auto compute, Compute::Create(device.get(), shape));
  SessionOptions job = ShardedJob(gpu, *cluster, shape);
  std::vector<Way> ways;
  job.job_id = "overlap-apart";
  ASSIGN_OR_RETURN(auto apart, ShardedTraining::Open(job, compute->model.get(), InfinityAtFirst));
  ways.push_back({"executor a process", std::move(apart)});
  job.job_id = "overlap-together";
  job.host_executor = RunExecutorHere({gpu.make_device});
  ASSIGN_OR_RETURN(auto together,
                   ShardedTraining::Open(job, compute->model.get(), InfinityAtFirst));
  ways.push_back({"executor in the trainer", std::move(together)});

  std::vector<double> of_compute;
  for (int round = 0; round < options.warm_up_rounds + options.rounds; ++round) {
    const int count = options.steps_per_round;
    ASSIGN_OR_RETURN(const double alone, Seconds(count, [&] { return compute->Step(); }));
    if (round >= options.warm_up_rounds) of_compute.push_back(alone);
    for (Way& way : ways) {
      const auto seconds = [&](bool computes) -> absl::StatusOr<double> {
        const auto result =
            Seconds(count, [&] { return SkippedStep(way.training.get(), computes); });
        RETURN_IF_ERROR(Annotate(result.status(), way.name));
        return result;
      };
      ASSIGN_OR_RETURN(const double work, seconds(/*computes=*/false));
      ASSIGN_OR_RETURN(const double both, seconds(/*computes=*/true));
      if (round < options.warm_up_rounds) continue;
      way.work.push_back(work);
      way.both.push_back(both);
    }
  }
  std::vector<BenchRow> rows = {RowOfSeconds(kCompute, of_compute)};
  for (const Way& way : ways) AddRows(way, of_compute, &rows);
  return rows;
}

}  // namespace gpu_check
}  // namespace tessera
