#include "tests/gpu/step_overlap.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/executor/host_executor.h"
#include "tests/gpu/product_count.h"
#include "tests/gpu/sharded_work.h"
#include "worker/device/cuda/cuda_rank_device.h"

namespace tessera {
namespace gpu_check {
namespace {

constexpr char kPasses[] = "passes over memory", kProducts[] = "products of matrices";
constexpr int kSamplesOfACount = 3;
// Two thirds of the products are in backward, and CountThatTakes may be off by a factor of two:
// then these still take as long as the work.
constexpr double kProductsByWork = 3;
constexpr int kPartsOfAUnit = 3;  // Its forward, and twice as much in its backward.

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The first element of each unit, and so of its gradient.
float InfinityAtFirst(int /*unit*/, int64_t i) {
  return i == 0 ? std::numeric_limits<float>::infinity() : 0;
}

// A model's work on parameters outside a job.
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
    ASSIGN_OR_RETURN(compute->slot, device->Allocate(size_bytes));
    ASSIGN_OR_RETURN(compute->sum, device->Allocate(shape.unit_numel * sizeof(float)));
    return compute;
  }
  absl::Status Step(const ModelPasses& passes) {
    const int num_units = static_cast<int>(halves.size());
    for (int u = 0; u < num_units; ++u) RETURN_IF_ERROR(passes.forward(u, halves[u].data()));
    for (int u = num_units - 1; u >= 0; --u) RETURN_IF_ERROR(passes.backward(u, halves[u].data()));
    return model->kernels().Finish();
  }
  // What the executor's work has of copies and kernels, and nothing else of it.
  absl::Status CopiesAndSums() {
    CudaRankKernels& kernels = model->kernels();
    for (int u = static_cast<int>(halves.size()) - 1; u >= 0; --u) {
      kernels.Copy(slot.data(), model->gradient(u), slot.size_bytes());
      kernels.Reduce({slot.data()}, DType::kBf16, sum.size_bytes() / sizeof(float), 1.0,
                     /*accumulate=*/false, {sum.data(), DType::kFp32}, /*measure=*/true);
    }
    host::GradientStats ignored;
    return kernels.TakeStats(&ignored);
  }

  std::vector<Buffer> halves;
  Buffer slot, sum;                  // Of a unit, bf16 and fp32.
  std::unique_ptr<ModelWork> model;  // Before what it works on goes.
};

// `count` products in a step, on the model's stream: a third of them in forward, and in each part
// of a unit as many as in any other, give or take one.
ModelPasses ProductPasses(Gemm* gemm, PrimaryContext* context, const ModelWork& model,
                          int num_units, int64_t count) {
  auto* const stream = static_cast<CudaStreamHandle*>(model.stream());
  const auto enqueue = [=](int pass) -> absl::Status {
    RETURN_IF_ERROR(context->Use());
    for (int64_t i = ProductsOfPass(count, pass, kPartsOfAUnit * num_units); i > 0; --i)
      RETURN_IF_ERROR(gemm->Enqueue(stream));
    return absl::OkStatus();
  };
  const auto backward = [=](int unit, const void*) -> absl::Status {
    const int pass = num_units + 2 * (num_units - 1 - unit);
    RETURN_IF_ERROR(enqueue(pass));
    return enqueue(pass + 1);
  };
  return {[=](int unit, const void*) { return enqueue(unit); }, backward};
}

absl::Status SkippedStep(ShardedTraining* training, const ModelPasses& passes) {
  StepOptions options;
  options.skip_non_finite = true;
  ASSIGN_OR_RETURN(const StepResult result, training->Step(passes, options));
  if (result.skipped) return absl::OkStatus();
  return absl::InternalError("a step with an infinity was not skipped");
}

double MedianOf(std::vector<double> values) { return bench::QuartilesOf(values).median; }

// Where the executor is.
struct Way {
  std::string name;
  std::unique_ptr<ShardedTraining> training;
};

// Seconds of a step during one kind of compute, by round.
struct Times {
  struct OfWay {
    std::vector<double> work, both;
  };
  std::vector<double> compute, kernels;
  std::vector<OfWay> ways;
};

class StepOverlap {
 public:
  StepOverlap(const testing_support::GpuUnderTest& gpu, StepOverlapOptions options)
      : gpu_(gpu), options_(std::move(options)) {}

  absl::Status SetUp() {
    const StepShape shape = {options_.steps.num_units, options_.steps.unit_numel,
                             options_.forward_passes};
    ASSIGN_OR_RETURN(cluster_, StartBenchCluster(gpu_));
    ASSIGN_OR_RETURN(device_, gpu_.make_device(0));
    ASSIGN_OR_RETURN(compute_, Compute::Create(device_.get(), shape));
    SessionOptions job = ShardedJob(gpu_, *cluster_, shape);
    job.job_id = "overlap-apart";
    RETURN_IF_ERROR(Open("executor a process", job));
    job.job_id = "overlap-together";
    job.host_executor = RunExecutorHere({gpu_.make_device});
    return Open("executor in the trainer", job);
  }

  absl::StatusOr<std::vector<BenchRow>> OfPasses() {
    const ModelPasses passes = compute_->model->passes();
    RETURN_IF_ERROR(compute_->Step(passes));  // The gradients of steps without.
    ASSIGN_OR_RETURN(const Times times, Measure(passes));
    for (const Times::OfWay& way : times.ways)
      work_seconds_ = std::max(work_seconds_, MedianOf(way.work));
    return RowsOf(kPasses, times);
  }

  // After OfPasses.
  absl::StatusOr<std::vector<BenchRow>> OfProducts(Gemm* gemm) {
    PrimaryContext* const context =
        static_cast<CudaRankDevice*>(device_.get())->cuda_device()->context();
    const auto passes = [&](int64_t count) {
      return ProductPasses(gemm, context, *compute_->model, options_.steps.num_units, count);
    };
    RETURN_IF_ERROR(compute_->Step(passes(1)));  // Its kernel is loaded.
    const auto seconds_of = [&](int64_t tried) -> absl::StatusOr<double> {
      std::vector<double> seconds;
      while (seconds.size() < kSamplesOfACount) {
        ASSIGN_OR_RETURN(const double of_step, SecondsOf(passes(tried)));
        seconds.push_back(of_step);
      }
      return MedianOf(seconds);
    };
    ASSIGN_OR_RETURN(int64_t count, CountThatTakes(kProductsByWork * work_seconds_, seconds_of));
    count = std::max<int64_t>(count, kPartsOfAUnit * options_.steps.num_units);
    ASSIGN_OR_RETURN(const Times times, Measure(passes(count)));
    BenchRow number;
    number.name =
        absl::StrCat("products of ", options_.product_size, " rows and columns in a step");
    const auto value = static_cast<double>(count);
    number.value = {value, value, value};
    std::vector<BenchRow> rows = RowsOf(kProducts, times);
    rows.insert(rows.begin(), std::move(number));
    return rows;
  }

 private:
  absl::Status Open(const std::string& name, const SessionOptions& job) {
    ASSIGN_OR_RETURN(auto training,
                     ShardedTraining::Open(job, compute_->model.get(), InfinityAtFirst));
    ways_.push_back({name, std::move(training)});
    return absl::OkStatus();
  }

  // Of one step, in the mean of a round's.
  absl::StatusOr<double> Seconds(const std::function<absl::Status()>& step) {
    const double begin = options_.host_seconds();
    for (int i = 0; i < options_.steps.steps_per_round; ++i) RETURN_IF_ERROR(step());
    return (options_.host_seconds() - begin) / options_.steps.steps_per_round;
  }
  static absl::Status CheckClock(double seconds) {
    if (seconds > 0) return absl::OkStatus();
    return absl::InternalError("a step took no time: the clock stands still");
  }
  absl::StatusOr<double> SecondsOf(const ModelPasses& passes) {
    return Seconds([&] { return compute_->Step(passes); });
  }
  absl::StatusOr<double> SecondsOf(const Way& way, const ModelPasses& passes) {
    absl::StatusOr<double> seconds =
        Seconds([&] { return SkippedStep(way.training.get(), passes); });
    RETURN_IF_ERROR(Annotate(seconds.status(), way.name));
    return seconds;
  }

  absl::StatusOr<Times> Measure(const ModelPasses& passes) {
    Times times;
    times.ways.resize(ways_.size());
    for (int round = 0; round < options_.steps.warm_up_rounds + options_.steps.rounds; ++round) {
      const bool counts = round >= options_.steps.warm_up_rounds;
      ASSIGN_OR_RETURN(const double alone, SecondsOf(passes));
      ASSIGN_OR_RETURN(const double kernels, Seconds([&] { return compute_->CopiesAndSums(); }));
      RETURN_IF_ERROR(CheckClock(kernels));
      if (counts) {
        times.compute.push_back(alone);
        times.kernels.push_back(kernels);
      }
      for (size_t i = 0; i < ways_.size(); ++i) {
        ASSIGN_OR_RETURN(const double work, SecondsOf(ways_[i], ModelPasses()));
        ASSIGN_OR_RETURN(const double both, SecondsOf(ways_[i], passes));
        for (const double seconds : {alone, work, both}) RETURN_IF_ERROR(CheckClock(seconds));
        if (!counts) continue;
        times.ways[i].work.push_back(work);
        times.ways[i].both.push_back(both);
      }
    }
    return times;
  }

  std::vector<BenchRow> RowsOf(const std::string& kind, const Times& times) const {
    const std::string alone = absl::StrCat(kind, " of a step, alone");
    const std::string kernels = absl::StrCat("copies and sums between ", kind, ", kernels alone");
    std::vector<BenchRow> rows = {RowOfSeconds(alone, times.compute),
                                  RowOfSeconds(kernels, times.kernels)};
    for (size_t i = 0; i < ways_.size(); ++i) {
      const auto& [work, both] = times.ways[i];
      const std::string& way = ways_[i].name;
      rows.push_back(RowOfSeconds(absl::StrCat("windows and reductions between ", kind, ", ", way),
                                  work, kernels, times.kernels, /*aim=*/0));
      rows.push_back(RowOfSeconds(absl::StrCat(kind, " beside windows and reductions, ", way), both,
                                  alone, times.compute, /*aim=*/0));
      BenchRow share;
      share.name = absl::StrCat("hidden share beside ", kind, ", ", way);
      share.value = bench::QuartilesOf(HiddenShares(times.compute, work, both));
      rows.push_back(std::move(share));
    }
    return rows;
  }

  const testing_support::GpuUnderTest& gpu_;
  const StepOverlapOptions options_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<RankDevice> device_;
  std::unique_ptr<Compute> compute_;
  std::vector<Way> ways_;
  double work_seconds_ = 0;  // Of a step without compute, of the way that takes longer.
};

BenchRow WithoutProducts(const absl::Status& why) {
  BenchRow row;
  row.name = absl::StrCat("hidden share beside ", kProducts);
  if (absl::IsNotFound(why)) {
    row.absent = std::string(why.message());
  } else {
    row.error = why.ToString();
  }
  return row;
}

}  // namespace

std::vector<double> HiddenShares(const std::vector<double>& compute,
                                 const std::vector<double>& work, const std::vector<double>& both) {
  std::vector<double> shares;
  for (size_t i = 0; i < both.size(); ++i)
    shares.push_back((compute[i] + work[i] - both[i]) / std::min(compute[i], work[i]));
  return shares;
}

absl::Status BenchStepOverlap(const testing_support::GpuUnderTest& gpu, StepOverlapOptions options,
                              const GemmLoader& load_gemm, const AddRows& add) {
  if (!options.host_seconds) options.host_seconds = SteadySeconds;
  StepOverlap bench(gpu, std::move(options));
  RETURN_IF_ERROR(bench.SetUp());
  ASSIGN_OR_RETURN(const std::vector<BenchRow> passes, bench.OfPasses());
  RETURN_IF_ERROR(add(passes));
  const absl::StatusOr<Gemm*> gemm = load_gemm();
  if (!gemm.ok()) return add({WithoutProducts(gemm.status())});
  // NotFound here means a missing library.
  const absl::StatusOr<std::vector<BenchRow>> products = bench.OfProducts(*gemm);
  if (products.ok()) return add(*products);
  return add({WithoutProducts(absl::InternalError(products.status().ToString()))});
}

}  // namespace gpu_check
}  // namespace tessera
