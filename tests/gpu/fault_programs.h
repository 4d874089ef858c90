// What a test of faults is besides: its own executor and trainer, so that one file is all of it.
//
//   PROGRAM                                the test
//   PROGRAM --as-executor FILE [...]       an executor, as tessera-executor; one that finds FILE
//                                          before a reduction removes it and breaks its device
//   PROGRAM --as-trainer [...]             a trainer of the toy model: see its --help
#ifndef TESSERA_TESTS_GPU_FAULT_PROGRAMS_H_
#define TESSERA_TESTS_GPU_FAULT_PROGRAMS_H_

#include <optional>

namespace tessera {
namespace gpu_check {

// What main returns; nothing where this is the test.
std::optional<int> RunFaultProgram(int argc, char** argv);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_FAULT_PROGRAMS_H_
