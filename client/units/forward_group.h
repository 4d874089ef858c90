// How far a forward of a unit of several modules has come. Pure; thread-compatible.
//
//   modules a, b, c    Begin(a)  End(a)  Begin(c)  End(c)  Begin(b)  End(b)
//                      opens                                         closes
//
// A unit of one module opens at each begin and closes at each end.
// Source: torch/distributed/fsdp/_fully_shard (hooks of a group of modules).
#ifndef TESSERA_CLIENT_UNITS_FORWARD_GROUP_H_
#define TESSERA_CLIENT_UNITS_FORWARD_GROUP_H_

#include <algorithm>
#include <vector>

namespace tessera {

class ForwardGroup {
 public:
  explicit ForwardGroup(int num_modules) : to_end_(num_modules, false) {}

  // A module's forward begins. Whether it is the unit's first one.
  bool Begin() {
    if (under_way() && to_end_.size() > 1) return false;
    to_end_.assign(to_end_.size(), true);
    return true;
  }
  // A module's forward ends. Whether all of them have.
  bool End(int module) {
    to_end_[module] = false;
    return !under_way();
  }
  bool has_ended() const { return !under_way(); }
  // Those that have not ended will not.
  void Forget() { to_end_.assign(to_end_.size(), false); }

 private:
  bool under_way() const {
    return std::find(to_end_.begin(), to_end_.end(), true) != to_end_.end();
  }

  std::vector<bool> to_end_;  // By module.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_UNITS_FORWARD_GROUP_H_
