// The p-norm of a sharded gradient: each rank measures its own shards, and the parts are combined.
//
//   part_r = sum |g|^p  over rank r's shards        norm = (part_0 + ... + part_{N-1})^(1/p)
//   part_r = max |g|    where p is infinite         norm = max of the parts
//
// RankKernels has the parts. In double, a rank's elements in the order of measured_sum.h and the
// parts in rank order, so every rank and run gets the same bits; for p = 1, 2 and infinity whatever
// its devices. A NaN makes the norm one. Pure; thread-safe.
#ifndef TESSERA_WORKER_ENGINE_GRADIENT_NORM_H_
#define TESSERA_WORKER_ENGINE_GRADIENT_NORM_H_

#include "absl/types/span.h"

namespace tessera {

// By which norm a gradient is clipped, and to what length.
struct ClipRule {
  double p = 2;         // Above 0; infinity: the largest magnitude.
  double max_norm = 0;  // 0: it is not clipped.
};

double CombineNormParts(absl::Span<const double> parts_by_rank, double p);

// By what a gradient of this norm is multiplied so that it is not longer than `max_norm`; 1 where
// that is 0. As torch.nn.utils.clip_grad_norm_.
double ClipCoefficient(double max_norm, double norm);

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_GRADIENT_NORM_H_
