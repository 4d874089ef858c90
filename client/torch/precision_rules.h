// What a MixedPrecision means for a job and for the modules of a tree. Pure; thread-compatible.
#ifndef TESSERA_CLIENT_TORCH_PRECISION_RULES_H_
#define TESSERA_CLIENT_TORCH_PRECISION_RULES_H_

#include <string>

#include "job/job_config.h"
#include "layout/dtype.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/units.h"

namespace tessera {

// As libtorch calls it.
torch::ScalarType ScalarTypeOf(DType dtype);

// `precision` as it is with `config`, and the job's dtypes as `precision` says.
MixedPrecision MergePrecision(MixedPrecision precision, JobConfig* config);

// Whether the module computes in fp32 whatever the rest does: it is chosen, or is a Sharded<> in
// which nothing else has parameters.
bool KeepsFullPrecision(const MixedPrecision& precision, const torch::nn::Module& module,
                        const std::string& name);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_PRECISION_RULES_H_
