#include "tests/gpu/gpu_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_stream.h"
#include "worker/device/cuda/device_region.h"

namespace tessera {
namespace gpu_check {
namespace {

constexpr double kScale = 0.5;
constexpr double kBytesAim = 0.9;  // Of the device's own copy.
constexpr char kCopy[] = "copy within the device";
constexpr char kRecord[] = "record of an event, which is the least stall";
constexpr char kCopyOut[] = "device to pinned host memory";

double SteadySeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

CudaAddress Address(const void* pointer) { return reinterpret_cast<CudaAddress>(pointer); }

// Two timed events on a stream.
class Stopwatch {
 public:
  static absl::StatusOr<std::unique_ptr<Stopwatch>> Create(CudaStream* stream) {
    auto watch = std::make_unique<Stopwatch>(stream);
    CudaApi* api = stream->context()->api();
    RETURN_IF_ERROR(stream->context()->Use());
    ASSIGN_OR_RETURN(watch->start_, api->EventCreateTimed());
    ASSIGN_OR_RETURN(watch->end_, api->EventCreateTimed());
    return watch;
  }
  explicit Stopwatch(CudaStream* stream) : stream_(stream) {}
  ~Stopwatch() {
    PrimaryContext* context = stream_->context();
    context->Check(context->Use());
    for (CudaEventHandle* event : {start_, end_}) {
      if (event != nullptr) context->Check(context->api()->EventDestroy(event));
    }
  }

  absl::Status Record() {
    return stream_->context()->api()->EventRecord(start_, stream_->handle());
  }
  // Seconds of the device for one of `repeats` times `work`.
  absl::StatusOr<double> Time(int repeats, const std::function<absl::Status()>& work) {
    CudaApi* api = stream_->context()->api();
    RETURN_IF_ERROR(stream_->context()->Use());
    RETURN_IF_ERROR(api->EventRecord(start_, stream_->handle()));
    for (int i = 0; i < repeats; ++i) RETURN_IF_ERROR(work());
    RETURN_IF_ERROR(api->EventRecord(end_, stream_->handle()));
    RETURN_IF_ERROR(api->EventSynchronize(end_));
    ASSIGN_OR_RETURN(const double milliseconds, api->EventElapsedTime(start_, end_));
    if (milliseconds <= 0) return absl::InternalError("the device's clock stands still");
    return milliseconds * 1e-3 / repeats;
  }

 private:
  CudaStream* const stream_;
  CudaEventHandle* start_ = nullptr;
  CudaEventHandle* end_ = nullptr;
};

// One figure: how a sample of it is taken, and what came of it.
struct Figure {
  std::string name;
  bool is_rate = true;   // GB/s, measured by events; else microseconds.
  std::string ratio_to;  // The figure that it has a ratio to; empty: none.
  double aim = 0;        // Of the ratio; 0: none.
  std::function<absl::StatusOr<double>()> sample;
  std::vector<double> samples = {};
  absl::Status status = {};
};

class GpuBench {
 public:
  GpuBench(CudaDevice* device, MeasuredKernels* kernels, const BenchOptions& options)
      : device_(device), api_(device->context()->api()), kernels_(kernels), options_(options) {
    if (!options_.host_seconds) options_.host_seconds = SteadySeconds;
  }

  absl::Status SetUp() {
    RETURN_IF_ERROR(device_->context()->Use());
    ASSIGN_OR_RETURN(const CudaMemInfo memory, api_->MemGetInfo());
    ASSIGN_OR_RETURN(bytes_, ArrayBytes(options_.array_bytes, memory.free_bytes));
    count_ = bytes_ / 4;
    ASSIGN_OR_RETURN(stream_, CudaStream::Create(device_->context(), "bench", /*priority=*/0));
    ASSIGN_OR_RETURN(watch_, Stopwatch::Create(stream_.get()));
    // Zeros: AdamW of them stays zeros, and no value is denormal.
    for (Buffer* array : {&gradient_, &p_, &m_, &v_, &halves_}) {
      ASSIGN_OR_RETURN(*array, device_->Allocate(array == &halves_ ? bytes_ / 2 : bytes_));
      device_->Fill(stream_.get(), array->data(), 0, array->size_bytes());
    }
    ASSIGN_OR_RETURN(pinned_, device_->AllocatePinned(bytes_));
    ASSIGN_OR_RETURN(stats_, device_->AllocatePinned(sizeof(host::GradientStats)));
    *stats_.data_as<host::GradientStats>() = {};
    std::fill_n(pinned_.data_as<char>(), bytes_, 0);  // Its pages are there before it is timed.
    stream_->Synchronize();
    return device_->status();
  }

  std::vector<BenchRow> Run() {
    std::vector<Figure> figures = Figures();
    for (int round = 0; round < options_.warm_up_rounds + options_.rounds; ++round) {
      for (Figure& figure : figures) {
        if (!figure.status.ok()) continue;
        const absl::StatusOr<double> sample = figure.sample();
        figure.status = sample.status();
        if (round >= options_.warm_up_rounds) figure.samples.push_back(sample.value_or(0));
      }
    }
    // What streams met is told nobody else, and makes all of it void.
    const absl::Status device = device_->status();
    std::vector<BenchRow> rows;
    for (Figure& figure : figures) {
      figure.status.Update(device);
      const auto other = std::find_if(figures.begin(), figures.end(), [&](const Figure& each) {
        return each.name == figure.ratio_to;
      });
      rows.push_back(RowOf(figure, other == figures.end() ? nullptr : &*other));
    }
    return rows;
  }

 private:
  std::vector<Figure> Figures() {
    CudaStreamHandle* stream = stream_->handle();
    float* p = p_.data_as<float>();
    std::vector<Figure> figures;
    const auto add_rate = [&](std::string name, int64_t bytes, bool to_copy,
                              std::function<absl::Status()> work, double aim = kBytesAim) {
      figures.push_back({std::move(name), true, to_copy ? kCopy : "", to_copy ? aim : 0,
                         [this, bytes, work] { return BytesPerSecond(bytes, work); }});
    };
    add_rate(kCopy, CopyFloorBytes(bytes_), false,
             [=] { return api_->MemcpyAsync(Address(p), Address(m_.data()), bytes_, stream); });
    add_rate("AdamW on fp32, published as bf16", AdamFloorBytes(count_), true, [=] {
      return kernels_->Adam(stream, count_, gradient_.data_as<float>(), p, m_.data_as<float>(),
                            v_.data_as<float>(), halves_.data_as<uint16_t>());
    });
    add_rate("cast of fp32 to bf16, scaled", CastFloorBytes(count_), true, [=] {
      return kernels_->Cast(stream, DType::kFp32, p, DType::kBf16, halves_.data(), count_, kScale);
    });
    add_rate("cast of bf16 to fp32, scaled", CastFloorBytes(count_), true, [=] {
      return kernels_->Cast(stream, DType::kBf16, halves_.data(), DType::kFp32, p, count_, kScale);
    });
    add_rate("norm and finite check of fp32", MeasureFloorBytes(count_), true, [=] {
      return kernels_->Measure(stream, p, count_, stats_.data_as<host::GradientStats>());
    });
    // Of zeros, which it leaves.
    add_rate("sum of 4 ranks' fp32, with norm and finite check", SumFloorBytes(count_), true, [=] {
      const void* const ranks[kSummedRanks] = {gradient_.data(), p, m_.data(), v_.data()};
      return kernels_->Sum(stream, ranks, count_, gradient_.data_as<float>(),
                           stats_.data_as<host::GradientStats>());
    });
    // Over the bus to the host each byte goes once.
    add_rate("pinned host memory to the device", bytes_, false, [=] {
      return api_->MemcpyAsync(Address(p), Address(pinned_.data()), bytes_, stream);
    });
    add_rate(kCopyOut, bytes_, false, [=] {
      return api_->MemcpyAsync(Address(pinned_.data()), Address(p), bytes_, stream);
    });
    figures.push_back({"snapshot of p, m and v, until training goes on", true, kCopyOut, kBytesAim,
                       [this]() -> absl::StatusOr<double> {
                         ASSIGN_OR_RETURN(const double seconds, SnapshotSeconds());
                         return static_cast<double>(kSnapshotArrays * bytes_) / seconds;
                       }});
    const auto add_time = [&](std::string name, std::function<absl::StatusOr<double>()> sample,
                              std::string ratio_to = "", double aim = 0) {
      figures.push_back({std::move(name), false, std::move(ratio_to), aim, std::move(sample)});
    };
    add_time(
        "stall of training for that snapshot", [this] { return SnapshotSeconds(); }, kRecord,
        /*aim=*/1);
    add_time(kRecord, [this] { return RecordSeconds(); });
    add_time(absl::StrCat("import and map a descriptor of ", options_.region_bytes >> 10, " KiB"),
             [this] { return ImportSeconds(); });
    add_time("launch of a kernel and back", [this] { return LaunchSeconds(); });
    return figures;
  }

  absl::StatusOr<double> BytesPerSecond(int64_t bytes, const std::function<absl::Status()>& work) {
    ASSIGN_OR_RETURN(const double seconds, watch_->Time(options_.repeats, work));
    return static_cast<double>(bytes) / seconds;
  }

  // As a save takes a version of the state: array by array, and it waits for the last.
  absl::StatusOr<double> SnapshotSeconds() {
    RETURN_IF_ERROR(device_->context()->Use());
    const double begin = options_.host_seconds();
    for (const Buffer* array : {&p_, &m_, &v_}) {
      RETURN_IF_ERROR(api_->MemcpyAsync(Address(pinned_.data()), Address(array->data()), bytes_,
                                        stream_->handle()));
    }
    RETURN_IF_ERROR(api_->StreamSynchronize(stream_->handle()));
    return options_.host_seconds() - begin;
  }

  absl::StatusOr<double> RecordSeconds() {
    RETURN_IF_ERROR(device_->context()->Use());
    const double begin = options_.host_seconds();
    RETURN_IF_ERROR(watch_->Record());
    return options_.host_seconds() - begin;
  }

  // Import, reserve, map and set access; neither the export nor the unmapping.
  absl::StatusOr<double> ImportSeconds() {
    const SharingDevice sharing = {api_, device_->context()->device(), device_->context()};
    ASSIGN_OR_RETURN(const DeviceRegion region,
                     DeviceRegion::Create(sharing, options_.region_bytes));
    ASSIGN_OR_RETURN(const UniqueFd descriptor, region.Export());
    const double begin = options_.host_seconds();
    ASSIGN_OR_RETURN(const DeviceMapping mapping,
                     DeviceMapping::Import(sharing, descriptor.get(), region.size_bytes(),
                                           CudaAccess::kReadWrite));
    return options_.host_seconds() - begin;
  }

  absl::StatusOr<double> LaunchSeconds() {
    RETURN_IF_ERROR(device_->context()->Use());
    const double begin = options_.host_seconds();
    RETURN_IF_ERROR(kernels_->Touch(stream_->handle(), p_.data_as<float>()));
    RETURN_IF_ERROR(api_->StreamSynchronize(stream_->handle()));
    return options_.host_seconds() - begin;
  }

  // `other`: what it has a ratio to, if not null.
  static BenchRow RowOf(const Figure& figure, const Figure* other) {
    BenchRow row;
    row.name = figure.name;
    row.error = figure.status.ok() ? "" : figure.status.ToString();
    if (!row.measured()) return row;
    std::vector<double> values = figure.samples;
    for (double& value : values) value *= figure.is_rate ? 1e-9 : 1e6;
    row.unit = figure.is_rate ? "GB/s" : "us";
    row.value = bench::QuartilesOf(values);
    if (other == nullptr || !other->status.ok()) return row;
    row.ratio_to = other->name;
    row.ratio = figure.is_rate ? bench::RatioOf(figure.samples, other->samples)
                               : bench::RatioOf(other->samples, figure.samples);
    row.aim = figure.aim;
    return row;
  }

  CudaDevice* const device_;
  CudaApi* const api_;
  MeasuredKernels* const kernels_;
  BenchOptions options_;
  int64_t bytes_ = 0;
  int64_t count_ = 0;
  Buffer gradient_, p_, m_, v_, halves_;
  Buffer pinned_, stats_;
  std::unique_ptr<CudaStream> stream_;  // Before what it works on goes.
  std::unique_ptr<Stopwatch> watch_;
};

}  // namespace

absl::StatusOr<int64_t> ArrayBytes(int64_t wanted_bytes, int64_t free_bytes) {
  const int64_t bytes = std::min(wanted_bytes, free_bytes / 16) / kMinArrayBytes * kMinArrayBytes;
  if (bytes > 0) return bytes;
  return absl::ResourceExhaustedError(
      absl::StrCat("no room for arrays to measure: ", free_bytes, " bytes are free"));
}

absl::StatusOr<std::vector<BenchRow>> BenchGpu(CudaDevice* device, MeasuredKernels* kernels,
                                               const BenchOptions& options) {
  GpuBench bench(device, kernels, options);
  RETURN_IF_ERROR(bench.SetUp());
  return bench.Run();
}

}  // namespace gpu_check
}  // namespace tessera
