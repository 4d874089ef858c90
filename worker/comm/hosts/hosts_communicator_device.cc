// HostsCommunicator with mapped buffers on a GPU: data travels through host memory, and is summed
// there in the same order. The bits are those of hosts without a GPU.
#include <algorithm>

#include "base/status_macros.h"
#include "layout/reduced_parts.h"
#include "worker/comm/hosts/hosts_communicator.h"

namespace tessera {
namespace {

// A buffer of at least so many bytes; what was in it may be lost.
template <typename Allocate>
absl::Status Reserve(Buffer* buffer, int64_t size_bytes, Allocate allocate) {
  if (buffer->size_bytes() >= size_bytes) return absl::OkStatus();
  buffer->Reset();
  ASSIGN_OR_RETURN(*buffer, allocate(size_bytes));
  return absl::OkStatus();
}

}  // namespace

absl::Status HostsCommunicator::GatherFromDevice(std::byte* base, int64_t bytes_per_rank) {
  const int64_t num_slices = 1 + static_cast<int64_t>(served_.size());
  RETURN_IF_ERROR(Reserve(&slices_, std::max<int64_t>(num_slices * bytes_per_rank, 1),
                          [&](int64_t bytes) { return options_.kernels->AllocateOnHost(bytes); }));
  std::byte* own = slices_.data_as<std::byte>();
  options_.kernels->Copy(own, base + options_.rank * bytes_per_rank, bytes_per_rank);
  // The mesh reads host memory, so the copies must have ended.
  RETURN_IF_ERROR(options_.kernels->Finish());
  sends_.clear();
  receives_.clear();
  for (int host = 0; host < options_.topology.num_hosts(); ++host) {
    if (host == host_) continue;
    sends_.push_back({options_.topology.Agent(host, options_.rank), own, bytes_per_rank});
  }
  for (size_t i = 0; i < served_.size(); ++i) {
    receives_.push_back(
        {served_[i], own + (1 + static_cast<int64_t>(i)) * bytes_per_rank, bytes_per_rank});
  }
  RETURN_IF_ERROR(Exchange(peers_, sends_, receives_));
  for (const PeerMesh::Part& slice : receives_) {
    options_.kernels->Copy(base + slice.peer * bytes_per_rank, slice.data, bytes_per_rank);
    payload_bytes_copied_ += bytes_per_rank;
  }
  // Peers read the device's memory right after the barrier.
  RETURN_IF_ERROR(options_.kernels->Finish());
  return options_.local->Barrier();
}

absl::Status HostsCommunicator::SumFromDevice(const Reduction& reduction, ElementRange slice,
                                              std::vector<std::byte>* sum) {
  PartsReduction parts = reduction.parts;
  parts.slice = slice;
  sum->resize(CountIn(parts.parts, slice) * SizeBytes(reduction.sum_dtype));
  if (sum->empty()) return absl::OkStatus();
  const int64_t sum_bytes = static_cast<int64_t>(sum->size());
  RETURN_IF_ERROR(Reserve(&device_sum_, sum_bytes,
                          [&](int64_t bytes) { return options_.device->Allocate(bytes); }));
  const host::SumOutput output = {device_sum_.data(), reduction.sum_dtype};
  inputs_.resize(options_.local->size());
  RETURN_IF_ERROR(ReduceParts(
      options_.kernels, parts, &inputs_,
      [&](size_t i, const SlicePart& part) {
        return static_cast<const char*>(reduction.sends_by_rank[first_ + i]) +
               part.range.begin * SizeBytes(parts.dtype);
      },
      [&](const SlicePart& part) { return output.At(part.packed_elements); }, nullptr));
  options_.kernels->Copy(sum->data(), device_sum_.data(), sum_bytes);
  return options_.kernels->Finish();
}

absl::Status HostsCommunicator::CopyParts(const Reduction& reduction, host::SumOutput recv,
                                          bool to_device) {
  const ElementRange own = reduction.parts.slice;
  const int64_t element_bytes = SizeBytes(recv.dtype);
  std::byte* packed = result_.data();
  for (const ElementRange& whole : reduction.parts.parts) {
    const ElementRange part = Intersect(whole, own);
    if (part.empty()) continue;
    void* there = recv.At(part.begin - own.begin).data;
    const int64_t bytes = part.size() * element_bytes;
    options_.kernels->Copy(to_device ? there : packed, to_device ? packed : there, bytes);
    packed += bytes;
  }
  return options_.kernels->Finish();
}

absl::Status HostsCommunicator::FinishToDevice(const Reduction& reduction, double scale,
                                               bool accumulate, host::SumOutput recv,
                                               host::GradientStats* stats) {
  PartsReduction parts = reduction.parts;
  parts.dtype = recv.dtype;
  parts.scale = scale;
  parts.accumulate = accumulate;
  result_.resize(CountIn(parts.parts, parts.slice) * SizeBytes(recv.dtype));
  // The sum so far is the first summand, so it comes to the host as well.
  if (accumulate) RETURN_IF_ERROR(CopyParts(reduction, recv, /*to_device=*/false));
  const host::SumOutput result = {result_.data(), recv.dtype};
  inputs_.resize(host_sums_.size());
  RETURN_IF_ERROR(ReduceParts(
      &kernels_, parts, &inputs_,
      [&](size_t host, const SlicePart& part) {
        return host_sums_[host].data() + part.packed_elements * SizeBytes(recv.dtype);
      },
      [&](const SlicePart& part) { return result.At(part.packed_elements); }, stats));
  // It waits for the copies: the kernels of the step read the sums on another stream.
  return CopyParts(reduction, recv, /*to_device=*/true);
}

}  // namespace tessera
