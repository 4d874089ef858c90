// Loops of the host in the place of kernels: for tests.
#ifndef TESSERA_WORKER_DEVICE_CUDA_KERNEL_LAUNCH_ON_HOST_H_
#define TESSERA_WORKER_DEVICE_CUDA_KERNEL_LAUNCH_ON_HOST_H_

namespace tessera {
namespace gpu {

// From now on each launch calls `await` with its stream first, and so keeps the stream's order.
// Without, a test waits for streams by itself. Of the whole process.
void AwaitStreamsBeforeLaunches(void (*await)(void* stream));

}  // namespace gpu
}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_KERNEL_LAUNCH_ON_HOST_H_
