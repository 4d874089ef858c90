// When a unit's parameters must be readable and when they may be given back: the rule and its
// table.
//
// The parameters of a unit are read by its forwards and by the nodes of the graphs that these made.
// Each forward and each node opens the unit before it reads, so the unit may be closed whenever
// none of them runs. The table closes it when nothing of it is left in the backwards under way. The
// rule does not depend on the number of backwards, on their order, or on how they nest.
//
//   kIdle       nobody reads; open where the rules keep it for backward (window_rules.h)
//   kForward    a forward of it runs
//   kBackward   a backward under way has nodes of it left to run, or computed it again
//   kBoth       both: a backward inside of a forward, or a forward that is computed again
//
// Pure; thread-safe.
#ifndef TESSERA_CLIENT_UNITS_WINDOW_STATE_H_
#define TESSERA_CLIENT_UNITS_WINDOW_STATE_H_

namespace tessera {

enum class WindowState { kIdle, kForward, kBackward, kBoth };

enum class WindowEvent {
  kForwardBegins,    // Outside of any backward.
  kRecomputeBegins,  // A forward, inside of a backward: nodes that read follow it.
  kForwardEnds,      // The last one of the unit that runs.
  kNodeBegins,
  kWorkEnds,      // Nothing of the unit is left in the backwards under way.
  kBackwardEnds,  // The outermost one.
};

enum class WindowAction {
  kNone,
  kOpen,  // If it is not open.
  kMayCloseAfterForward,
  kMayCloseAfterBackward,
};

struct WindowTransition {
  WindowState next;
  WindowAction action;
};

WindowTransition Transition(WindowState state, WindowEvent event);

}  // namespace tessera

#endif  // TESSERA_CLIENT_UNITS_WINDOW_STATE_H_
