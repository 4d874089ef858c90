// Which forward of a unit made a node of the graph: autograd numbers the nodes that a thread makes,
// upwards, so those of a forward are an interval, without the intervals of the forwards inside it.
//
//   numbers   10 ... 14 │ 15 ... 22 │ 23 ... 30 │ 31 ...
//   forward   outer     │ inner     │ outer     │ none
//
// Of each thread at least the last half million forwards are remembered, and at most a million,
// since an evaluation that makes graphs may never make a step.
//
// Thread-compatible.
#ifndef TESSERA_CLIENT_UNITS_NODE_OWNERS_H_
#define TESSERA_CLIENT_UNITS_NODE_OWNERS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "client/units/unit_forward.h"

namespace tessera {

class NodeOwners {
 public:
  static constexpr size_t kMaxMarks = size_t{1} << 21;  // Of a thread; two a forward.
  using Depths = std::map<uint64_t, size_t>;            // By thread.

  // The nodes that the thread makes from the number `next` on are of this forward, ...
  void Begin(uint64_t thread, uint64_t next, std::shared_ptr<const UnitForward> forward);
  // ... and from here on of the one around it.
  void End(uint64_t thread, uint64_t next);
  // How many have started and not ended; back to that after an exception.
  Depths depths() const;
  void EndDownTo(const Depths& depths, uint64_t this_thread, uint64_t next);
  // Null: of none.
  std::shared_ptr<const UnitForward> Find(uint64_t thread, uint64_t number) const;
  // Nodes that were made before have no owner; forwards that have started stay.
  void Forget();

 private:
  struct Mark {
    uint64_t from;
    std::shared_ptr<const UnitForward> forward;
  };
  struct Thread {
    std::vector<Mark> marks;  // By number.
    std::vector<std::shared_ptr<const UnitForward>> under_way;
    void Add(uint64_t from);
  };

  std::map<uint64_t, Thread> threads_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_UNITS_NODE_OWNERS_H_
