#include "tests/gpu/overlap_bench.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/trainer_team.h"
#include "worker/device/cuda/cuda_rank_device.h"
#include "worker/device/cuda/cuda_stream.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace gpu_check {
namespace {

using testing_support::TrainerTeam;

constexpr int kRanks = 2;
constexpr double kSpeedAim = 1 / 1.03;  // Of the product by itself.

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Once `started`, `work` runs on a thread of its own, again and again, until it is told to end.
using Beside =
    std::function<absl::Status(const std::atomic<bool>& over, std::atomic<bool>* started)>;

class OverlapBench {
 public:
  OverlapBench(const testing_support::GpuUnderTest& gpu, Gemm* gemm, const OverlapOptions& options)
      : gpu_(gpu), gemm_(gemm), options_(options) {}

  absl::Status SetUp() {
    LocalCluster::Options cluster;
    cluster.num_devices = kRanks;
    cluster.device_memory = gpu_.memory;
    cluster.machine = std::make_shared<ExecutorMachine>();
    cluster.machine->make_device = gpu_.make_device;
    ASSIGN_OR_RETURN(cluster_, LocalCluster::Start(cluster));
    ASSIGN_OR_RETURN(device_, gpu_.make_device(0));
    if (!device_->is_separate()) return absl::InvalidArgumentError("overlap needs a GPU");
    CudaDevice* const cuda = static_cast<CudaRankDevice*>(device_.get())->cuda_device();
    ASSIGN_OR_RETURN(gemms_, CudaStream::Create(cuda->context(), "gemm", /*priority=*/0));
    ASSIGN_OR_RETURN(copies_, CudaStream::Create(cuda->context(), "copies", /*priority=*/0));
    for (Buffer* buffer : {&from_, &to_}) {
      ASSIGN_OR_RETURN(*buffer, cuda->Allocate(options_.unit_bytes));
      cuda->Fill(copies_.get(), buffer->data(), 0, options_.unit_bytes);
    }
    copies_->Synchronize();

    SessionOptions job;
    job.coordinator_address = cluster_->coordinator_address();
    job.worker_address = cluster_->worker_address();
    job.make_device = gpu_.make_device;
    job.job_id = "overlap";
    job.config.world_size = kRanks;
    job.config.compute_dtype = job.config.reduce_dtype = DType::kBf16;
    const int64_t numel = options_.unit_bytes / SizeBytes(DType::kBf16);
    for (int u = 0; u < options_.num_units; ++u) {
      const std::string name = absl::StrCat("unit", u);
      job.model.units.push_back({name, {{name + ".weight", {numel}, DType::kFp32}}});
    }
    ASSIGN_OR_RETURN(TrainerTeam team, TrainerTeam::Open(job));
    team_ = std::make_unique<TrainerTeam>(std::move(team));
    return team_->RunAll([](Session* session) {
      return session->Initialize([](int, int, Values values) {
        for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) values.as<float>()[i] = 1;
      });
    });
  }

  // Seconds of one product, with something running concurrently or, if that is null, alone.
  absl::StatusOr<double> Sample(const Beside& beside) {
    std::atomic<bool> over{false}, started{beside == nullptr};
    absl::Status of_other;
    std::thread other([&] {
      if (beside != nullptr) of_other = beside(over, &started);
      started = true;
    });
    while (!started) std::this_thread::yield();
    const absl::StatusOr<double> seconds = Products();
    over = true;
    other.join();
    RETURN_IF_ERROR(of_other);
    return seconds;
  }

  absl::Status Windows(const std::atomic<bool>& over, std::atomic<bool>* started) {
    // The other rank makes as many as rank 0 has started.
    std::atomic<int64_t> begun{0};
    std::atomic<bool> ended{false};
    return team_->RunAll([&](Session* session) -> absl::Status {
      if (session->rank() == 0) {
        const absl::Cleanup end = [&] { ended = true; };
        while (!over) {
          ++begun;
          RETURN_IF_ERROR(WindowOnEach(session));
          *started = true;
        }
        return absl::OkStatus();
      }
      for (int64_t done = 0;;) {
        if (done < begun) {
          RETURN_IF_ERROR(WindowOnEach(session));
          ++done;
        } else if (ended) {
          if (done == begun) return absl::OkStatus();
        } else {
          std::this_thread::yield();
        }
      }
    });
  }

  absl::Status Copies(const std::atomic<bool>& over, std::atomic<bool>* started) {
    CudaDevice* const cuda = static_cast<CudaRankDevice*>(device_.get())->cuda_device();
    while (!over) {
      cuda->Copy(copies_.get(), to_.data(), from_.data(), options_.unit_bytes);
      *started = true;
      copies_->Synchronize();
    }
    return cuda->status();
  }

  // Kernels of so many windows on each unit, on each rank.
  absl::StatusOr<int64_t> CountOfWindows(KernelCounter* counter) {
    // That it counts at all.
    RETURN_IF_ERROR(counter->Start());
    RETURN_IF_ERROR(Products().status());
    ASSIGN_OR_RETURN(const int64_t of_products, counter->Stop());
    if (of_products < options_.gemms) {
      return absl::InternalError(
          absl::StrCat("of ", options_.gemms, " products ", of_products, " kernels were counted"));
    }
    RETURN_IF_ERROR(counter->Start());
    RETURN_IF_ERROR(team_->RunAll([&](Session* session) -> absl::Status {
      for (int i = 0; i < options_.counted_windows; ++i) RETURN_IF_ERROR(WindowOnEach(session));
      return absl::OkStatus();
    }));
    RETURN_IF_ERROR(device_->Synchronize());
    return counter->Stop();
  }

 private:
  static absl::Status WindowOnEach(Session* session) {
    for (int u = 0; u < session->num_units(); ++u) {
      RETURN_IF_ERROR(session->Unshard(u));
      RETURN_IF_ERROR(session->Reshard(u));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> Products() {
    RETURN_IF_ERROR(gemms_->context()->Use());
    const double begin = SteadySeconds();
    for (int i = 0; i < options_.gemms; ++i) RETURN_IF_ERROR(gemm_->Enqueue(gemms_->handle()));
    gemms_->Synchronize();
    RETURN_IF_ERROR(gemms_->context()->status());
    return (SteadySeconds() - begin) / options_.gemms;
  }

  const testing_support::GpuUnderTest& gpu_;
  Gemm* const gemm_;
  const OverlapOptions options_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<RankDevice> device_;
  Buffer from_, to_;
  std::unique_ptr<CudaStream> gemms_, copies_;
  std::unique_ptr<TrainerTeam> team_;
};

struct Way {
  std::string name;
  double aim = 0;
  Beside beside;
  std::vector<double> seconds = {};
};

BenchRow RowOf(const Way& way, const Way& alone) {
  if (&way == &alone) return RowOfSeconds(way.name, way.seconds);
  return RowOfSeconds(way.name, way.seconds, alone.name, alone.seconds, way.aim);
}

BenchRow CountRow(const absl::StatusOr<int64_t>& count) {
  BenchRow row;
  row.name = "kernels of windows on units of two ranks";
  if (absl::IsNotFound(count.status())) {
    row.absent = std::string(count.status().message());
  } else if (!count.ok()) {
    row.error = count.status().ToString();
  } else {
    const auto number = static_cast<double>(*count);
    row.value = {number, number, number};
    row.limit = 0;
  }
  return row;
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> BenchOverlap(const testing_support::GpuUnderTest& gpu,
                                                   Gemm* gemm,
                                                   const absl::StatusOr<KernelCounter*>& counter,
                                                   const OverlapOptions& options) {
  if (gpu.in_process()) {
    return absl::FailedPreconditionError(
        absl::StrCat("ranks of a worker cannot share the GPU: ", gpu.memory->why_not_shared()));
  }
  OverlapBench bench(gpu, gemm, options);
  RETURN_IF_ERROR(bench.SetUp());
  const std::string mebibytes = absl::StrCat(options.unit_bytes >> 20, " MiB");
  std::vector<Way> ways;
  ways.push_back({"product of matrices, alone", 0, nullptr});
  ways.push_back({absl::StrCat("product beside windows on units of ", mebibytes), kSpeedAim,
                  [&](const auto& over, auto* started) { return bench.Windows(over, started); }});
  ways.push_back({absl::StrCat("product beside copies of ", mebibytes), 0,
                  [&](const auto& over, auto* started) { return bench.Copies(over, started); }});
  for (int round = 0; round < options.warm_up_rounds + options.rounds; ++round) {
    for (Way& way : ways) {
      const absl::StatusOr<double> seconds = bench.Sample(way.beside);
      RETURN_IF_ERROR(Annotate(seconds.status(), way.name));
      if (round >= options.warm_up_rounds) way.seconds.push_back(*seconds);
    }
  }
  std::vector<BenchRow> rows;
  for (const Way& way : ways) rows.push_back(RowOf(way, ways.front()));
  rows.push_back(CountRow(counter.ok() ? bench.CountOfWindows(*counter)
                                       : absl::StatusOr<int64_t>(counter.status())));
  return rows;
}

}  // namespace gpu_check
}  // namespace tessera
