#include "worker/engine/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "worker/device/measured_sum.h"

namespace tessera {
namespace {

// Added to the norm before dividing.
constexpr double kClipEpsilon = 1e-6;

template <typename Real>
void Add(const Real* gradient, int64_t count, double p, double* part) {
  WithMeasured(p, [&](auto measured) {
    constexpr Measured kWhat = decltype(measured)::value;
    *part = AddTerm<kWhat>(*part, MeasuredSum<kWhat>(gradient, count, p));
  });
}

}  // namespace

void AddToNormPart(const float* gradient, int64_t count, double p, double* part) {
  Add(gradient, count, p, part);
}

void AddToNormPart(const double* gradient, int64_t count, double p, double* part) {
  Add(gradient, count, p, part);
}

void AddToNormPart(ConstValues gradient, double p, double* part) {
  const int64_t count = gradient.size();
  if (gradient.dtype() == DType::kFp64) {
    AddToNormPart(static_cast<const double*>(gradient.data()), count, p, part);
  } else {
    AddToNormPart(static_cast<const float*>(gradient.data()), count, p, part);
  }
}

double CombineNormParts(absl::Span<const double> parts_by_rank, double p) {
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
