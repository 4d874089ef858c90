#include "worker/engine/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/measured_sum.h"

namespace tessera {
namespace {

// Added to the norm before dividing.
// As torch.nn.utils.clip_grad_norm_ has it.
constexpr double kClipEpsilon = 1e-6;

}  // namespace

double CombineNormParts(absl::Span<const double> parts_by_rank, double p) {
  // In rank order: every rank gets the same bits, and so the same decision.
  double combined = 0;
  for (const double part : parts_by_rank) {
    combined = std::isinf(p) ? AddTerm<Measured::kLargest>(combined, part) : combined + part;
  }
  if (std::isinf(p) || p == 1) return combined;
  return p == 2 ? std::sqrt(combined) : std::pow(combined, 1 / p);
}

double ClipCoefficient(double max_norm, double norm) {
  return max_norm <= 0 ? 1.0 : std::min(1.0, max_norm / (norm + kClipEpsilon));
}

}  // namespace tessera
