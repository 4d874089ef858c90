// Makes a use of a unit's parameters outside their window a clear error.
//
// A closed unit's pages cannot be read and no page can ever be written. The first touch ends the
// process with one line on standard error that names parameter and unit:
//
//   tessera: parameter 'blocks.2.fc.weight' of unit 'blocks.2' was read while the unit is sharded
//
// A language that has exceptions may have these uses interrupted instead (OnOutsideUse): the
// instruction ends, and the interpreter raises its exception soon after. A read sees the pages as
// they are; a write goes to pages that take their place until then.
//
// One guard covers one mapped parameter region. Open and Close are for one thread at a time; the
// signal handler is installed once per process, and passes on faults outside every guarded region.
#ifndef TESSERA_CLIENT_SESSION_WINDOW_GUARD_H_
#define TESSERA_CLIENT_SESSION_WINDOW_GUARD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "layout/model_layout.h"

namespace tessera {

class WindowGuard {
 public:
  struct UnitPages {
    std::byte* begin = nullptr;  // Page-aligned.
    int64_t size_bytes = 0;
    int64_t element_bytes = 0;
  };
  // All units start closed. `layout` outlives the guard.
  WindowGuard(const ModelLayout* layout, std::vector<UnitPages> units);
  ~WindowGuard();
  WindowGuard(const WindowGuard&) = delete;
  WindowGuard& operator=(const WindowGuard&) = delete;

  // Errors: ResourceExhausted  the kernel refuses.
  absl::Status Open(int unit);
  absl::Status Close(int unit);

  // From now on such a use calls interrupt(argument), which must be async-signal-safe, and goes on.
  // Null: it ends the process. Of all guards of the process.
  static void OnOutsideUse(int (*interrupt)(int), int argument);
  // What the first of these uses since the last call was; empty: there was none. Puts the pages
  // back. On the thread that opens and closes windows, while no thread uses a parameter.
  static std::string TakeOutsideUse();
  // Installs the handler again, where other code has installed its own since.
  static void InstallHandler();

  // The line for an access to `address`, empty if it is none of this guard's. Async-signal-safe
  // as far as it goes: it reads only what was built before.
  bool Describe(const void* address, char* buffer, size_t capacity) const;
  // Makes the closed unit of this address readable, or puts other memory in its place. False: this
  // is not possible. Async-signal-safe.
  bool LetRead(const void* address);
  bool LetWrite(const void* address);

 private:
  absl::Status Protect(int unit, int protection);
  int UnitAt(const void* address) const;  // -1: none of this guard's.
  void CloseLetRead();

  const ModelLayout* const layout_;
  const std::vector<UnitPages> units_;
  std::vector<char> open_;      // Read by the handler.
  std::vector<char> let_read_;  // By unit: the handler made it readable while it is closed.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_WINDOW_GUARD_H_
