// The arithmetic of AllReduce: element by element, in the order of the inputs. Pure; thread-safe.
#ifndef TESSERA_WORKER_COMM_ORDERED_REDUCE_H_
#define TESSERA_WORKER_COMM_ORDERED_REDUCE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "layout/dtype.h"
#include "worker/comm/communicator.h"

namespace tessera {

// output[i] = inputs[0][i] op inputs[1][i] op ...; `output` may be one of the inputs. Requires at
// least one input, and `dtype` kFp32 or kFp64.
void OrderedReduce(absl::Span<const void* const> inputs, DType dtype, ReduceOp op, int64_t count,
                   void* output);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_ORDERED_REDUCE_H_
