// One forward of a unit: what backward needs to come back to it.
#ifndef TESSERA_CLIENT_UNITS_UNIT_FORWARD_H_
#define TESSERA_CLIENT_UNITS_UNIT_FORWARD_H_

#include "client/units/prefetch_plan.h"
#include "tessera/session_options.h"

namespace tessera {

struct UnitForward {
  int unit = -1;
  Precision precision = Precision::kCompute;  // In which its parameters are read.
  bool in_backward = false;                   // It computes a part of one again.
  PrefetchPlan::Use use;                      // Known once it has ended.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_UNITS_UNIT_FORWARD_H_
