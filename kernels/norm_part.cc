#include "kernels/norm_part.h"

#include "kernels/measured_sum.h"

namespace tessera {
namespace host {
namespace {

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

}  // namespace host
}  // namespace tessera
