// A rank of the Open MPI with which collectives are compared; started by mpirun as
//   open_mpi_peer CONTROL_FILE MAX_BYTES
// See open_mpi_control.h. Built by mpicxx, from this file alone.
#include <fcntl.h>
#include <mpi.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "tests/bench/open_mpi_control.h"

namespace {

using tessera::bench::OpenMpiControl;
using tessera::bench::OpenMpiOp;

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

int64_t OwnCpuNs() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (int64_t{usage.ru_utime.tv_sec} + usage.ru_stime.tv_sec) * 1000000000 +
         (int64_t{usage.ru_utime.tv_usec} + usage.ru_stime.tv_usec) * 1000;
}

// As a team's ranks are.
void PinTo(int rank) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(rank % sysconf(_SC_NPROCESSORS_ONLN), &set);
  sched_setaffinity(0, sizeof(set), &set);  // Best effort: a container may forbid it.
}

OpenMpiControl* MapControl(const char* path) {
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* memory = mmap(nullptr, sizeof(OpenMpiControl), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return memory == MAP_FAILED ? nullptr : static_cast<OpenMpiControl*>(memory);
}

// Faulted in, with huge pages where the system gives them.
float* WarmFloats(int64_t bytes, float value) {
  void* memory = nullptr;
  if (posix_memalign(&memory, size_t{2} << 20, bytes) != 0) return nullptr;
  madvise(memory, bytes, MADV_HUGEPAGE);
  auto* floats = static_cast<float*>(memory);
  for (int64_t i = 0; i < bytes / static_cast<int64_t>(sizeof(float)); ++i) floats[i] = value;
  return floats;
}

void Run(OpenMpiOp op, int num_floats, int size, float* send, float* full) {
  const int shard = num_floats / size;
  switch (op) {
    case OpenMpiOp::kBarrier:
      MPI_Barrier(MPI_COMM_WORLD);
      return;
    case OpenMpiOp::kAllGather:
      MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, full, shard, MPI_FLOAT, MPI_COMM_WORLD);
      return;
    case OpenMpiOp::kReduceScatter:
      MPI_Reduce_scatter_block(send, full, shard, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      return;
    case OpenMpiOp::kQuit:
      return;
  }
}

void Wait(sem_t* semaphore) {
  while (sem_wait(semaphore) != 0 && errno == EINTR) continue;
}

void Serve(OpenMpiControl* control, int rank, int size, float* send, float* full) {
  for (;;) {
    sem_post(&control->done);
    Wait(&control->go[rank]);
    const OpenMpiOp op = control->op;
    if (op == OpenMpiOp::kQuit) return;
    const int num_floats = static_cast<int>(control->num_floats);
    MPI_Barrier(MPI_COMM_WORLD);
    control->begin_ns[rank] = NowNs();
    for (int i = 0; i < control->repetitions; ++i) Run(op, num_floats, size, send, full);
    control->end_ns[rank] = NowNs();
    // A wrong sum would be no peer. Each rank sends its number plus one.
    if (op == OpenMpiOp::kReduceScatter && full[0] != 0.5f * size * (size + 1)) {
      fprintf(stderr, "open_mpi_peer: rank %d has a wrong sum, %g\n", rank, full[0]);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    control->cpu_ns[rank] = OwnCpuNs();
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  OpenMpiControl* control = argc == 3 ? MapControl(argv[1]) : nullptr;
  const int64_t bytes = argc == 3 ? atoll(argv[2]) : 0;
  if (control == nullptr || bytes <= 0 || size > tessera::bench::kMaxOpenMpiRanks) {
    fprintf(stderr, "open_mpi_peer: no control file, size, or too many ranks\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  PinTo(rank);
  float* send = WarmFloats(bytes, static_cast<float>(rank + 1));
  float* full = WarmFloats(bytes, 0);
  if (send == nullptr || full == nullptr) {
    fprintf(stderr, "open_mpi_peer: no memory\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  Serve(control, rank, size, send, full);
  MPI_Finalize();
  return 0;
}
