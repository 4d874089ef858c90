#include "tests/gpu/graph_bench.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_stream.h"
#include "worker/device/host/kernels.h"

namespace tessera {
namespace gpu_check {
namespace {

constexpr double kMostSecondsAUnit = 1e-6;

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

CudaAddress Address(const void* pointer) { return reinterpret_cast<CudaAddress>(pointer); }

class GraphBench {
 public:
  GraphBench(CudaDevice* device, MeasuredKernels* kernels, GraphBenchOptions options)
      : device_(device),
        api_(device->context()->api()),
        kernels_(kernels),
        options_(std::move(options)) {}
  ~GraphBench() {
    if (graph_ != nullptr) (void)api_->GraphDestroy(graph_);
  }

  absl::Status SetUp() {
    const int64_t numel = options_.num_units * options_.unit_numel;
    ASSIGN_OR_RETURN(stream_, CudaStream::Create(device_->context(), "graph", /*priority=*/0));
    for (Buffer* array : {&gradients_, &sums_, &p_, &m_, &v_}) {
      ASSIGN_OR_RETURN(*array, device_->Allocate(numel * sizeof(float)));
    }
    ASSIGN_OR_RETURN(halves_, device_->Allocate(numel * sizeof(uint16_t)));
    ASSIGN_OR_RETURN(stats_,
                     device_->AllocatePinned(options_.num_units * sizeof(host::GradientStats)));
    std::vector<float> gradients(numel);
    for (int64_t i = 0; i < numel; ++i) gradients[i] = static_cast<float>(i % 251) - 125;
    RETURN_IF_ERROR(api_->MemcpyAsync(Address(gradients_.data()), Address(gradients.data()),
                                      gradients_.size_bytes(), stream_->handle()));
    RETURN_IF_ERROR(LaunchEach());  // No kernel is loaded in the middle of what is kept.
    RETURN_IF_ERROR(api_->StreamSynchronize(stream_->handle()));
    return Keep();
  }

  // The same from the same start.
  absl::Status Compare() {
    ASSIGN_OR_RETURN(const std::vector<float> expected, After([this] { return LaunchEach(); }));
    ASSIGN_OR_RETURN(const std::vector<float> found, After([this] { return LaunchGraph(); }));
    if (memcmp(expected.data(), found.data(), expected.size() * sizeof(float)) != 0)
      return absl::DataLossError("a graph of a step's updates has not the bits of the updates");
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<BenchRow>> Run() {
    std::vector<double> each, graph;
    for (int round = 0; round < options_.warm_up_rounds + options_.rounds; ++round) {
      ASSIGN_OR_RETURN(const double of_each, SecondsAUnit([this] { return LaunchEach(); }));
      ASSIGN_OR_RETURN(const double of_graph, SecondsAUnit([this] { return LaunchGraph(); }));
      if (round < options_.warm_up_rounds) continue;
      each.push_back(of_each);
      graph.push_back(of_graph);
    }
    const std::string one_by_one = "launches of a unit's sum and update, one by one";
    const std::vector<double> most(graph.size(), kMostSecondsAUnit);
    return std::vector<BenchRow>{
        RowOfSeconds(one_by_one, each),
        RowOfSeconds(absl::StrCat("the same, a unit of a CUDA graph of ", options_.num_units),
                     graph, one_by_one, each, /*aim=*/0),
        RowOfSeconds("the same beside its limit", graph, "a microsecond", most, /*aim=*/1),
    };
  }

 private:
  absl::Status LaunchEach() {
    for (int unit = 0; unit < options_.num_units; ++unit) {
      const int64_t begin = unit * options_.unit_numel;
      const void* const ranks[] = {gradients_.data_as<float>() + begin};
      float* const sum = sums_.data_as<float>() + begin;
      RETURN_IF_ERROR(kernels_->Sum(stream_->handle(), ranks, options_.unit_numel, sum,
                                    stats_.data_as<host::GradientStats>() + unit));
      RETURN_IF_ERROR(kernels_->Adam(stream_->handle(), options_.unit_numel, sum,
                                     p_.data_as<float>() + begin, m_.data_as<float>() + begin,
                                     v_.data_as<float>() + begin,
                                     halves_.data_as<uint16_t>() + begin));
    }
    return absl::OkStatus();
  }
  absl::Status LaunchGraph() { return api_->GraphLaunch(graph_, stream_->handle()); }

  absl::Status Keep() {
    RETURN_IF_ERROR(api_->StreamBeginCapture(stream_->handle()));
    const absl::Status launched = LaunchEach();
    absl::StatusOr<CudaGraphHandle*> graph = api_->StreamEndCapture(stream_->handle());
    if (graph.ok()) graph_ = *graph;
    RETURN_IF_ERROR(launched);
    return graph.status();
  }

  absl::StatusOr<std::vector<float>> After(const std::function<absl::Status()>& launch) {
    for (const Buffer* array : {&p_, &m_, &v_}) {
      RETURN_IF_ERROR(
          api_->MemsetD8Async(Address(array->data()), 0, array->size_bytes(), stream_->handle()));
    }
    RETURN_IF_ERROR(launch());
    std::vector<float> values(p_.size_bytes() / sizeof(float));
    RETURN_IF_ERROR(api_->MemcpyAsync(Address(values.data()), Address(p_.data()), p_.size_bytes(),
                                      stream_->handle()));
    RETURN_IF_ERROR(api_->StreamSynchronize(stream_->handle()));
    return values;
  }

  absl::StatusOr<double> SecondsAUnit(const std::function<absl::Status()>& launch) {
    const double begin = options_.host_seconds();
    RETURN_IF_ERROR(launch());
    const double seconds = options_.host_seconds() - begin;
    RETURN_IF_ERROR(api_->StreamSynchronize(stream_->handle()));
    return seconds / options_.num_units;
  }

  CudaDevice* const device_;
  CudaApi* const api_;
  MeasuredKernels* const kernels_;
  const GraphBenchOptions options_;
  Buffer gradients_, sums_, p_, m_, v_, halves_, stats_;
  std::unique_ptr<CudaStream> stream_;  // Before what it works on goes.
  CudaGraphHandle* graph_ = nullptr;
};

}  // namespace

absl::StatusOr<std::vector<BenchRow>> BenchGraph(CudaDevice* device, MeasuredKernels* kernels,
                                                 GraphBenchOptions options) {
  if (!options.host_seconds) options.host_seconds = SteadySeconds;
  RETURN_IF_ERROR(device->context()->Use());
  GraphBench bench(device, kernels, std::move(options));
  RETURN_IF_ERROR(bench.SetUp());
  RETURN_IF_ERROR(bench.Compare());
  return bench.Run();
}

}  // namespace gpu_check
}  // namespace tessera
