// One function a kernel: launches it on a stream and returns CUDA's number for what the launch
// said, or kNotBuilt where this program was built without nvcc. See gpu_kernels.h, which checks
// arguments and is what others call. Included by nvcc, so it knows nothing but plain types: dtypes
// are DType's numbers, counts are ELEMENTS, pointers are addresses of the device. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_KERNEL_LAUNCH_H_
#define TESSERA_WORKER_DEVICE_CUDA_KERNEL_LAUNCH_H_

#include <cstdint>

#include "worker/device/cuda/kernel_math.h"

namespace tessera {
namespace gpu {

constexpr int kNotBuilt = 801;   // CUDA_ERROR_NOT_SUPPORTED.
constexpr int kMaxInputs = 256;  // Their addresses fit into a kernel's arguments.

// ElementType's numbers, where FP8 is accepted in addition to dtypes.
constexpr int kFp8E4M3 = 16;
constexpr int kFp8E5M2 = 17;

struct Inputs {
  const void* at[kMaxInputs];
  int count;
};

// Where copies of new parameters go; null: nowhere. `full` is of the parameters' own type,
// `half_dtype` is of `half`.
struct Published {
  void* full;
  void* half;
  int half_dtype;
};

template <typename Real>
struct AdamArrays {
  const Real* p_in;
  const Real* m_in;
  const Real* v_in;
  Real* p_out;
  Real* m_out;
  Real* v_out;
  Published published;
};

// Where the measure of what is written is added; `sum` null: nowhere. As of LaunchMeasure.
struct Measuring {
  double* room = nullptr;
  double* sum = nullptr;
  bool* non_finite = nullptr;
};

// Loads all kernels onto the current device. By default the driver loads each one at its first
// launch, and that launch waits for all kernels that run: behind one of NCCL's that waits for a
// dead rank it would never return.
int LoadKernels();

int LaunchCast(void* stream, int from_dtype, const void* from, int to_dtype, void* to,
               int64_t count, double scale);
// `format`: 0 for E4M3, 1 for E5M2.
int LaunchCastToFp8(void* stream, int from_dtype, const void* from, int format, void* to,
                    int64_t count, double scale);
int LaunchCastFromFp8(void* stream, int format, const void* from, int to_dtype, void* to,
                      int64_t count, double scale);
int LaunchScale(void* stream, int dtype, void* values, int64_t count, double factor);
// `dtype`, of `values`: fp32 or fp64.
int LaunchRoundToHalf(void* stream, int half_dtype, int dtype, void* values, int64_t count);
int LaunchFill(void* stream, int dtype, void* values, int64_t count, double value);
// `input`: kFp8E4M3 and kFp8E5M2 too, into fp32.
int LaunchReduce(void* stream, const Inputs& inputs, int input, int64_t count, double scale,
                 bool accumulate, int output_dtype, void* output, const Measuring& measuring);
// `type`: kFp8E4M3 and kFp8E5M2 too. `op`, 0: sum, 1: maximum, 2: minimum; `scale` is the sum's.
int LaunchCombine(void* stream, const Inputs& inputs, int type, int op, double scale, int64_t count,
                  void* output);
// Adds what is measured for the p-norm of fp32 or fp64 values to `sum`; sets `non_finite`, where
// not null, if one of them is. `room` is for MeasureRoom(count).
int LaunchMeasure(void* stream, int dtype, const void* values, int64_t count, double p,
                  double* room, double* sum, bool* non_finite);
// Of float and of double.
template <typename Real>
int LaunchAdam(void* stream, const AdamFactors<Real>& factors, int64_t count, const Real* gradient,
               const AdamArrays<Real>& arrays);
template <typename Real>
int LaunchSgd(void* stream, const SgdFactors<Real>& factors, int64_t count, const Real* gradient,
              const Real* p_in, const Real* momentum_in, Real* p_out, Real* momentum_out,
              const Published& published);
// Adds the elements' checksums to `sum`.
int LaunchChecksum(void* stream, const void* values, int element_bytes, int64_t count,
                   uint64_t* sum);

}  // namespace gpu
}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_KERNEL_LAUNCH_H_
