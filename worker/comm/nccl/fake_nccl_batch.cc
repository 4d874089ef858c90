#include "worker/comm/nccl/fake_nccl_batch.h"

#include <cstring>
#include <optional>

#include "base/check.h"
#include "kernels/narrow_floats.h"

namespace tessera {
namespace {

using Kind = FakeNcclCall::Kind;
using Calls = std::vector<FakeNcclCall>;

using narrow::WideOf;

// Rounded to T, as each step of a sum is that the library makes in T.
template <typename T>
T Rounded(WideOf<T> value) {
  T rounded;
  narrow::Narrow(value, &rounded);
  return rounded;
}

// By which the rank's elements are multiplied before they are summed.
template <typename T>
std::optional<T> ScalarOf(const FakeNcclCall& call, size_t num_ranks) {
  if (call.op == NcclOp::kAverage)
    return Rounded<T>(static_cast<WideOf<T>>(1.0 / static_cast<double>(num_ranks)));
  if (!call.scalar.has_value()) return std::nullopt;
  const bool on_device = call.scalar->on_device != nullptr;
  T scalar;
  std::memcpy(static_cast<void*>(&scalar),
              on_device ? call.scalar->on_device : call.scalar->bytes.data(), sizeof(T));
  return scalar;
}

template <typename T>
T Combine(NcclOp op, T a, T b) {
  if (op == NcclOp::kMax || op == NcclOp::kMin) return narrow::Select(op == NcclOp::kMax, a, b);
  return Rounded<T>(narrow::Widen(a) + narrow::Widen(b));
}

// Elements [begin, begin + count) of all ranks' call number `index`.
template <typename T>
std::vector<char> ReduceAs(const std::vector<const Calls*>& calls_by_rank, size_t index,
                           int64_t begin, int64_t count) {
  std::vector<T> result(count);
  for (size_t rank = 0; rank < calls_by_rank.size(); ++rank) {
    const FakeNcclCall& call = (*calls_by_rank[rank])[index];
    const T* const from = static_cast<const T*>(call.send) + begin;
    const std::optional<T> scalar = ScalarOf<T>(call, calls_by_rank.size());
    for (int64_t i = 0; i < count; ++i) {
      T value = from[i];
      if (scalar.has_value()) value = Rounded<T>(narrow::Widen(value) * narrow::Widen(*scalar));
      result[i] = rank == 0 ? value : Combine(call.op, result[i], value);
    }
  }
  std::vector<char> bytes(count * sizeof(T));
  if (count > 0) std::memcpy(bytes.data(), result.data(), bytes.size());
  return bytes;
}

std::vector<char> Reduce(const std::vector<const Calls*>& calls_by_rank, size_t index,
                         int64_t begin, int64_t count) {
  switch ((*calls_by_rank[0])[index].type) {
    case NcclType::kFloat32:
      return ReduceAs<float>(calls_by_rank, index, begin, count);
    case NcclType::kFloat64:
      return ReduceAs<double>(calls_by_rank, index, begin, count);
    case NcclType::kBfloat16:
      return ReduceAs<narrow::Bf16>(calls_by_rank, index, begin, count);
    case NcclType::kFloat16:
      return ReduceAs<narrow::Fp16>(calls_by_rank, index, begin, count);
    case NcclType::kFloat8e4m3:
      return ReduceAs<narrow::Fp8E4M3>(calls_by_rank, index, begin, count);
    case NcclType::kFloat8e5m2:
      return ReduceAs<narrow::Fp8E5M2>(calls_by_rank, index, begin, count);
    case NcclType::kUint8:
    case NcclType::kInt32:
    case NcclType::kInt64:
      break;
  }
  TESSERA_CHECK(false);  // Nobody sums those.
  return {};
}

// The n-th call of `kind` with `peer`.
const FakeNcclCall& Nth(const Calls& calls, Kind kind, int peer, int n) {
  for (const FakeNcclCall& call : calls) {
    if (call.kind == kind && call.peer == peer && n-- == 0) return call;
  }
  TESSERA_CHECK(false);  // A receive that nobody sends to.
  return calls[0];
}

std::vector<char> Bytes(const FakeNcclCall& sender, int64_t size_bytes) {
  TESSERA_CHECK(sender.count * SizeBytes(sender.type) == size_bytes);
  const char* from = static_cast<const char*>(sender.send);
  return std::vector<char>(from, from + size_bytes);
}

}  // namespace

std::vector<std::vector<char>> ReadFakeNcclBatch(const std::vector<const Calls*>& calls_by_rank,
                                                 int rank) {
  const Calls& own = *calls_by_rank[rank];
  std::vector<std::vector<char>> results(own.size());
  std::vector<int> num_received(calls_by_rank.size());
  for (size_t i = 0; i < own.size(); ++i) {
    const FakeNcclCall& call = own[i];
    const int64_t size_bytes = call.count * SizeBytes(call.type);
    switch (call.kind) {
      case Kind::kAllGather:
        for (const Calls* calls : calls_by_rank) {
          const std::vector<char> part = Bytes((*calls)[i], size_bytes);
          results[i].insert(results[i].end(), part.begin(), part.end());
        }
        break;
      case Kind::kReduceScatter:
        results[i] = Reduce(calls_by_rank, i, rank * call.count, call.count);
        break;
      case Kind::kAllReduce:
        results[i] = Reduce(calls_by_rank, i, 0, call.count);
        break;
      case Kind::kBroadcast:
        results[i] = Bytes((*calls_by_rank[call.peer])[i], size_bytes);
        break;
      case Kind::kSend:
        break;
      case Kind::kRecv:
        results[i] =
            Bytes(Nth(*calls_by_rank[call.peer], Kind::kSend, rank, num_received[call.peer]++),
                  size_bytes);
        break;
    }
  }
  return results;
}

}  // namespace tessera
