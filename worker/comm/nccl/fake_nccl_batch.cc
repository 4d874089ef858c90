#include "worker/comm/nccl/fake_nccl_batch.h"

#include <cstring>

#include "base/check.h"
#include "worker/comm/ordered_reduce.h"

namespace tessera {
namespace {

using Kind = FakeNcclCall::Kind;
using Calls = std::vector<FakeNcclCall>;

ReduceOp Of(NcclOp op) {
  if (op == NcclOp::kMax) return ReduceOp::kMax;
  return op == NcclOp::kMin ? ReduceOp::kMin : ReduceOp::kSum;
}

// Elements [begin, begin + count) of all ranks' call number `index`.
std::vector<char> Sum(const std::vector<const Calls*>& calls_by_rank, size_t index, int64_t begin,
                      int64_t count) {
  const FakeNcclCall& own = (*calls_by_rank[0])[index];
  const int64_t element_bytes = SizeBytes(own.type);
  std::vector<const void*> inputs;
  for (const Calls* calls : calls_by_rank) {
    inputs.push_back(static_cast<const char*>((*calls)[index].send) + begin * element_bytes);
  }
  TESSERA_CHECK(own.type == NcclType::kFloat32 || own.type == NcclType::kFloat64);
  std::vector<char> result(count * element_bytes);
  const DType dtype = own.type == NcclType::kFloat64 ? DType::kFp64 : DType::kFp32;
  OrderedReduce(inputs, dtype, Of(own.op), count, result.data());
  return result;
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
        results[i] = Sum(calls_by_rank, i, rank * call.count, call.count);
        break;
      case Kind::kAllReduce:
        results[i] = Sum(calls_by_rank, i, 0, call.count);
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
