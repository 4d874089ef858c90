// 32 bits that say what a rank called, for its peers to compare: 8 of operation, 24 of arguments.
// Pure; thread-safe.
#ifndef TESSERA_WORKER_COMM_OPERATION_DIGEST_H_
#define TESSERA_WORKER_COMM_OPERATION_DIGEST_H_

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "absl/strings/string_view.h"

namespace tessera {

enum class Operation : uint8_t {
  kNone,
  kBarrier,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kAllGatherMapped,
  kReduceScatterMapped,
  kExchange,
};

inline absl::string_view OperationName(uint32_t digest) {
  switch (static_cast<Operation>(digest >> 24)) {
    case Operation::kNone:
      break;
    case Operation::kBarrier:
      return "Barrier";
    case Operation::kAllGather:
      return "AllGather";
    case Operation::kReduceScatter:
      return "ReduceScatter";
    case Operation::kAllReduce:
      return "AllReduce";
    case Operation::kBroadcast:
      return "Broadcast";
    case Operation::kAllGatherMapped:
      return "AllGatherMapped";
    case Operation::kReduceScatterMapped:
      return "ReduceScatterMapped";
    case Operation::kExchange:
      return "Exchange";
  }
  return "an unknown operation";
}

// A number as an argument: others have other bits.
inline int64_t DigestOf(double number) {
  int64_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return bits;
}

inline uint32_t OperationDigest(Operation operation, std::initializer_list<int64_t> arguments) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (int64_t argument : arguments) {
    hash = (hash ^ static_cast<uint64_t>(argument)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return static_cast<uint32_t>(operation) << 24 | static_cast<uint32_t>(hash >> 40);
}

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_OPERATION_DIGEST_H_
