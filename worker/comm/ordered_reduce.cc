#include "worker/comm/ordered_reduce.h"

#include "base/check.h"

namespace tessera {
namespace {

template <typename Real>
Real Combine(ReduceOp op, Real a, Real b) {
  switch (op) {
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kMax:
      return (a > b || a != a) ? a : b;
    case ReduceOp::kMin:
      return (a < b || a != a) ? a : b;
  }
  return a;
}

template <typename Real>
void Reduce(absl::Span<const void* const> inputs, ReduceOp op, int64_t count, Real* output) {
  for (int64_t i = 0; i < count; ++i) {
    Real value = static_cast<const Real*>(inputs[0])[i];
    for (size_t r = 1; r < inputs.size(); ++r) {
      value = Combine(op, value, static_cast<const Real*>(inputs[r])[i]);
    }
    output[i] = value;
  }
}

}  // namespace

void OrderedReduce(absl::Span<const void* const> inputs, DType dtype, ReduceOp op, int64_t count,
                   void* output) {
  TESSERA_CHECK(!inputs.empty());
  TESSERA_CHECK(dtype == DType::kFp32 || dtype == DType::kFp64);
  if (dtype == DType::kFp64) {
    Reduce(inputs, op, count, static_cast<double*>(output));
  } else if (op == ReduceOp::kSum) {
    host::ReduceSlices(inputs, dtype, count, 1.0f, false, static_cast<float*>(output), nullptr);
  } else {
    Reduce(inputs, op, count, static_cast<float*>(output));
  }
}

}  // namespace tessera
