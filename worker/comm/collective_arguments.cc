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

absl::Status CheckPointer(const void* pointer, int64_t count, const char* name) {
  if (pointer != nullptr || count == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is null"));
}

absl::Status CheckGradientDType(DType dtype) {
  if (dtype == DType::kFp32 || dtype == DType::kBf16) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("gradients are fp32 or bf16, not ", Name(dtype)));
}

}  // namespace

absl::Status CheckAllGather(const void* send, const void* recv, int64_t bytes_per_rank, int size) {
  RETURN_IF_ERROR(CheckExtent(bytes_per_rank, 1, size));
  RETURN_IF_ERROR(CheckPointer(send, bytes_per_rank, "send"));
  return CheckPointer(recv, bytes_per_rank, "recv");
}

absl::Status CheckReduceScatter(const void* send, const void* recv, int64_t count_per_rank,
                                DType dtype, int size) {
  RETURN_IF_ERROR(CheckGradientDType(dtype));
  RETURN_IF_ERROR(CheckExtent(count_per_rank, SizeBytes(dtype), size));
  RETURN_IF_ERROR(CheckPointer(send, count_per_rank, "send"));
  return CheckPointer(recv, count_per_rank, "recv");
}

absl::Status CheckAllReduce(const void* buffer, int64_t count, DType dtype) {
  if (dtype != DType::kFp32 && dtype != DType::kFp64) {
    return absl::InvalidArgumentError(
        absl::StrCat("AllReduce takes fp32 or fp64, not ", Name(dtype)));
  }
  RETURN_IF_ERROR(CheckExtent(count, SizeBytes(dtype), 1));
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
                                      int64_t begin_element, int64_t count, DType dtype,
                                      const void* recv, int size) {
  RETURN_IF_ERROR(CheckGradientDType(dtype));
  if (static_cast<int64_t>(sends_by_rank.size()) != size) {
    return absl::InvalidArgumentError(
        absl::StrCat(sends_by_rank.size(), " send buffers for ", size, " ranks"));
  }
  int64_t end_element = 0;
  if (begin_element < 0 || count < 0 ||
      __builtin_add_overflow(begin_element, count, &end_element)) {
    return absl::InvalidArgumentError(
        absl::StrCat("impossible range: ", count, " elements from ", begin_element));
  }
  RETURN_IF_ERROR(CheckExtent(end_element, SizeBytes(dtype), 1));
  for (const void* send : sends_by_rank) RETURN_IF_ERROR(CheckPointer(send, count, "a send"));
  return CheckPointer(recv, count, "recv");
}

}  // namespace tessera
