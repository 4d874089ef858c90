#include "tests/gpu/graph_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/kernels.h"
#include "worker/device/cuda/cuda_stream.h"

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
    for (const Half& half : halves_) {
      for (CudaGraphHandle* graph : half.graphs) (void)api_->GraphDestroy(graph);
    }
  }

  absl::Status SetUp() {
    const int64_t numel = options_.num_units * options_.unit_numel;
    ASSIGN_OR_RETURN(stream_, CudaStream::Create(device_->context(), "graph", /*priority=*/0));
    for (Buffer* array : {&gradients_, &slots_, &sums_, &p_, &m_, &v_}) {
      ASSIGN_OR_RETURN(*array, device_->Allocate(numel * sizeof(float)));
    }
    ASSIGN_OR_RETURN(published_, device_->Allocate(numel * sizeof(uint16_t)));
    ASSIGN_OR_RETURN(stats_,
                     device_->AllocatePinned(options_.num_units * sizeof(host::GradientStats)));
    std::vector<float> gradients(numel);
    for (int64_t i = 0; i < numel; ++i) gradients[i] = static_cast<float>(i % 251) - 125;
    RETURN_IF_ERROR(api_->MemcpyAsync(Address(gradients_.data()), Address(gradients.data()),
                                      gradients_.size_bytes(), stream_->handle()));
    for (const Half& half : halves_) RETURN_IF_ERROR(LaunchEach(half));
    // So no kernel is loaded in the middle of what is kept.
    RETURN_IF_ERROR(api_->StreamSynchronize(stream_->handle()));
    for (Half& half : halves_) RETURN_IF_ERROR(Keep(&half));
    return absl::OkStatus();
  }

  // The same from the same start.
  absl::Status Compare() {
    RETURN_IF_ERROR(Clear());
    for (const Half& half : halves_) RETURN_IF_ERROR(LaunchEach(half));
    ASSIGN_OR_RETURN(const std::vector<char> expected, Left());
    RETURN_IF_ERROR(Clear());
    for (const Half& half : halves_) RETURN_IF_ERROR(LaunchGraphs(half));
    ASSIGN_OR_RETURN(const std::vector<char> found, Left());
    if (found == expected) return absl::OkStatus();
    return absl::DataLossError("graphs of a step's halves have not the bits of its launches");
  }

  absl::StatusOr<std::vector<BenchRow>> Run() {
    std::vector<double> both;
    for (int round = 0; round < options_.warm_up_rounds + options_.rounds; ++round) {
      double graphs = 0;
      for (Half& half : halves_) {
        ASSIGN_OR_RETURN(const double each, SecondsAUnit([&] { return LaunchEach(half); }));
        ASSIGN_OR_RETURN(const double graph, SecondsAUnit([&] { return LaunchGraphs(half); }));
        graphs += graph;
        if (round < options_.warm_up_rounds) continue;
        half.of_each.push_back(each);
        half.of_graph.push_back(graph);
      }
      if (round >= options_.warm_up_rounds) both.push_back(graphs);
    }
    std::vector<BenchRow> rows;
    for (const Half& half : halves_) {
      const std::string one_by_one = absl::StrCat("launches of a unit's ", half.name);
      rows.push_back(RowOfSeconds(one_by_one, half.of_each));
      const std::string graphs =
          half.is_by_unit ? "a CUDA graph a unit: "
                          : absl::StrCat("a unit of a CUDA graph of ", options_.num_units, ": ");
      rows.push_back(RowOfSeconds(absl::StrCat("the same, ", graphs, half.name), half.of_graph,
                                  one_by_one, half.of_each, /*aim=*/0));
    }
    const std::vector<double> most(both.size(), kMostSecondsAUnit);
    rows.push_back(
        RowOfSeconds("a unit's graph of sums and its part of the updates', beside its limit", both,
                     "a microsecond", most, /*aim=*/1));
    return rows;
  }

 private:
  struct Half {
    std::string name;
    absl::Status (GraphBench::*launch)(int64_t unit);
    bool is_by_unit;  // Each has a graph of its own; else one has all.
    std::vector<CudaGraphHandle*> graphs = {};
    std::vector<double> of_each = {}, of_graph = {};  // By round.
  };

  // What the rank that sums does, and its trainer before it.
  absl::Status LaunchSum(int64_t unit) {
    const int64_t begin = unit * options_.unit_numel;
    float* const slot = slots_.data_as<float>() + begin;
    RETURN_IF_ERROR(api_->MemcpyAsync(Address(slot), Address(gradients_.data_as<float>() + begin),
                                      options_.unit_numel * static_cast<int64_t>(sizeof(float)),
                                      stream_->handle()));
    const void* const ranks[] = {slot};
    return kernels_->Sum(stream_->handle(), ranks, options_.unit_numel,
                         sums_.data_as<float>() + begin,
                         stats_.data_as<host::GradientStats>() + unit);
  }
  absl::Status LaunchUpdate(int64_t unit) {
    const int64_t begin = unit * options_.unit_numel;
    return kernels_->Adam(stream_->handle(), options_.unit_numel, sums_.data_as<float>() + begin,
                          p_.data_as<float>() + begin, m_.data_as<float>() + begin,
                          v_.data_as<float>() + begin, published_.data_as<uint16_t>() + begin);
  }
  absl::Status LaunchEach(const Half& half) {
    for (int unit = 0; unit < options_.num_units; ++unit)
      RETURN_IF_ERROR((this->*half.launch)(unit));
    return absl::OkStatus();
  }
  absl::Status LaunchGraphs(const Half& half) {
    for (CudaGraphHandle* graph : half.graphs)
      RETURN_IF_ERROR(api_->GraphLaunch(graph, stream_->handle()));
    return absl::OkStatus();
  }

  absl::Status Keep(Half* half) {
    const int units = half->is_by_unit ? 1 : options_.num_units;
    for (int begin = 0; begin < options_.num_units; begin += units) {
      RETURN_IF_ERROR(api_->StreamBeginCapture(stream_->handle()));
      absl::Status launched;
      for (int unit = begin; unit < begin + units && launched.ok(); ++unit)
        launched = (this->*half->launch)(unit);
      absl::StatusOr<CudaGraphHandle*> graph = api_->StreamEndCapture(stream_->handle());
      if (graph.ok()) half->graphs.push_back(*graph);
      RETURN_IF_ERROR(launched);
      RETURN_IF_ERROR(graph.status());
    }
    return absl::OkStatus();
  }

  absl::Status Clear() {
    for (const Buffer* array : Arrays()) {
      RETURN_IF_ERROR(
          api_->MemsetD8Async(Address(array->data()), 0, array->size_bytes(), stream_->handle()));
    }
    RETURN_IF_ERROR(api_->StreamSynchronize(stream_->handle()));
    std::fill_n(stats_.data_as<host::GradientStats>(), options_.num_units, host::GradientStats());
    return absl::OkStatus();
  }
  // The bytes of all that the halves write.
  absl::StatusOr<std::vector<char>> Left() {
    std::vector<char> bytes;
    for (const Buffer* array : Arrays()) {
      const size_t begin = bytes.size();
      bytes.resize(begin + array->size_bytes());
      RETURN_IF_ERROR(api_->MemcpyAsync(Address(bytes.data() + begin), Address(array->data()),
                                        array->size_bytes(), stream_->handle()));
      RETURN_IF_ERROR(api_->StreamSynchronize(stream_->handle()));
    }
    for (int unit = 0; unit < options_.num_units; ++unit) {
      const host::GradientStats& stats = stats_.data_as<host::GradientStats>()[unit];
      const auto* const norm = reinterpret_cast<const char*>(&stats.sum_of_squares);
      bytes.insert(bytes.end(), norm, norm + sizeof(stats.sum_of_squares));
      bytes.push_back(stats.non_finite ? 1 : 0);
    }
    return bytes;
  }
  std::vector<const Buffer*> Arrays() const {
    return {&slots_, &sums_, &p_, &m_, &v_, &published_};
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
  Buffer gradients_, slots_, sums_, p_, m_, v_, published_, stats_;
  std::unique_ptr<CudaStream> stream_;  // Before what it works on goes.
  Half halves_[2] = {{"copy and sum", &GraphBench::LaunchSum, /*is_by_unit=*/true},
                     {"update", &GraphBench::LaunchUpdate, /*is_by_unit=*/false}};
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
