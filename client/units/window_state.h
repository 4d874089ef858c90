// When a unit's parameters must be readable and when they may be given back: the rule and its
// table.
//
// Who reads parameters is a forward of the unit or a node of the graph that such a forward made.
// Each of them opens the unit before it reads, so the unit may be closed whenever no forward of it
// runs and no backward under way has nodes of it left. Nothing else is needed for the values to be
// right: not how often backward comes, in which order, or from inside of what.
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
