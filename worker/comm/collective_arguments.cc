#include "worker/comm/collective_arguments.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// `count` elements of `element_bytes` for each of `ranks` are addressable.
absl::Status CheckExtent(int64_t count, int64_t element_bytes, int64_t ranks) {
  int64_t total = 0;
  if (count < 0 || __builtin_mul_overflow(count, element_bytes, &total) ||
      __builtin_mul_overflow(total, ranks, &total)) {
    return absl::InvalidArgumentError(
        absl::StrCat("impossible size: ", count, " for each of ", ranks, " ranks"));
  }
  return absl::OkStatus();
}

// A rank with nothing to move may pass null.
absl::Status CheckPointer(const void* pointer, int64_t count, const char* name) {
  if (pointer != nullptr || count == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is null"));
}

absl::Status CheckGradientDType(ElementType type, DType sum_dtype) {
  if (type.is_fp8()) {
    if (sum_dtype == DType::kFp32) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("sums of ", Name(type), " are fp32, not ", Name(sum_dtype)));
  }
  if (type == DType::kFp32 || IsHalf(type.dtype())) return absl::OkStatus();
  if (type == DType::kFp64 && sum_dtype == DType::kFp64) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "gradients are fp32, bf16, fp16 or, where sums are too, fp64; not ", Name(type)));
}

absl::Status CheckSumOutput(host::SumOutput recv, int64_t count) {
  if (recv.dtype != DType::kFp32 && recv.dtype != DType::kFp64) {
    return absl::InvalidArgumentError(
        absl::StrCat("sums are fp32 or fp64, not ", Name(recv.dtype)));
  }
  return CheckPointer(recv.data, count, "recv");
}

}  // namespace

absl::Status CheckAllGather(const void* send, const void* recv, int64_t bytes_per_rank, int size) {
  RETURN_IF_ERROR(CheckExtent(bytes_per_rank, 1, size));
  RETURN_IF_ERROR(CheckPointer(send, bytes_per_rank, "send"));
  return CheckPointer(recv, bytes_per_rank, "recv");
}

absl::Status CheckReduceScatter(const void* send, host::SumOutput recv, int64_t count_per_rank,
                                ElementType type, int size) {
  RETURN_IF_ERROR(CheckGradientDType(type, recv.dtype));
  RETURN_IF_ERROR(CheckExtent(count_per_rank, SizeBytes(type), size));
  RETURN_IF_ERROR(CheckPointer(send, count_per_rank, "send"));
  return CheckSumOutput(recv, count_per_rank);
}

absl::Status CheckAllReduce(const void* buffer, int64_t count, ElementType type, ReduceOp op,
                            double scale) {
  if (!IsFloatingPoint(type)) {
    return absl::InvalidArgumentError(
        absl::StrCat("AllReduce takes floating point, not ", Name(type)));
  }
  if (op != ReduceOp::kSum && scale != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a maximum or minimum takes no scale, but got ", scale));
  }
  RETURN_IF_ERROR(CheckExtent(count, SizeBytes(type), 1));
  return CheckPointer(buffer, count, "buffer");
}

absl::Status CheckBroadcast(const void* buffer, int64_t bytes, int root, int size) {
  if (root < 0 || root >= size) {
    return absl::InvalidArgumentError(absl::StrCat("root ", root, " of ", size, " ranks"));
  }
  RETURN_IF_ERROR(CheckExtent(bytes, 1, 1));
  return CheckPointer(buffer, bytes, "buffer");
}

absl::Status CheckReduceScatterMapped(absl::Span<const void* const> sends_by_rank,
                                      absl::Span<const ElementRange> slices_by_rank,
                                      absl::Span<const ElementRange> parts, DType dtype,
                                      host::SumOutput recv, int rank, int size) {
  RETURN_IF_ERROR(CheckGradientDType(dtype, recv.dtype));
  if (static_cast<int64_t>(sends_by_rank.size()) != size ||
      static_cast<int64_t>(slices_by_rank.size()) != size) {
    return absl::InvalidArgumentError(absl::StrCat(sends_by_rank.size(), " send buffers and ",
                                                   slices_by_rank.size(), " slices for ", size,
                                                   " ranks"));
  }
  // Checked once for all communicators: ends are multiplied by the element size in each of them,
  // and must not overflow there.
  for (const ElementRange& slice : slices_by_rank) {
    if (slice.begin < 0 || slice.end < slice.begin) {
      return absl::InvalidArgumentError(
          absl::StrCat("impossible slice [", slice.begin, ", ", slice.end, ")"));
    }
    RETURN_IF_ERROR(CheckExtent(slice.end, SizeBytes(dtype), 1));
  }
  // Sorted and disjoint: packed sums hold each element once.
  // They are cut alike on all ranks, so one sum's bytes mean the same parts everywhere.
  int64_t end = 0;
  for (const ElementRange& part : parts) {
    if (part.begin < end || part.end < part.begin) {
      return absl::InvalidArgumentError(
          absl::StrCat("impossible part [", part.begin, ", ", part.end, ") after ", end));
    }
    end = part.end;
  }
  return CheckSumOutput(recv, slices_by_rank[rank].size());
}

absl::Status CheckAllGatherMapped(const void* base, int64_t bytes_per_rank, int size) {
  RETURN_IF_ERROR(CheckExtent(bytes_per_rank, 1, size));
  return CheckPointer(base, bytes_per_rank, "base");
}

}  // namespace tessera
