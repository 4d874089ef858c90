// How much memory this machine has, and has left. Thread-safe.
#ifndef TESSERA_BASE_MACHINE_MEMORY_H_
#define TESSERA_BASE_MACHINE_MEMORY_H_

#include <cstdint>

namespace tessera {

// Of this machine, or of this process's control group (version 2) where that has less.
int64_t MachineMemoryBytes();
// What processes here could have of it now, if files' cached pages make room.
int64_t AvailableMemoryBytes();

}  // namespace tessera

#endif  // TESSERA_BASE_MACHINE_MEMORY_H_
