#include "client/units/window_state.h"

#include <cstddef>

namespace tessera {
namespace {

constexpr WindowState I = WindowState::kIdle, F = WindowState::kForward, B = WindowState::kBackward,
                      X = WindowState::kBoth;
constexpr WindowAction kNo = WindowAction::kNone, kOpen = WindowAction::kOpen,
                       kAfterF = WindowAction::kMayCloseAfterForward,
                       kAfterB = WindowAction::kMayCloseAfterBackward;

// Rows: the state. Columns: the event, in the order of WindowEvent.
constexpr WindowTransition kTable[4][6] = {
    // Forward    Recompute    ForwardEnds  Node        WorkEnds      BackwardEnds
    {{F, kOpen}, {X, kOpen}, {I, kNo}, {B, kOpen}, {I, kAfterB}, {I, kAfterB}},  // kIdle
    {{F, kOpen}, {X, kOpen}, {I, kAfterF}, {X, kOpen}, {F, kNo}, {F, kNo}},      // kForward
    {{X, kOpen}, {X, kOpen}, {B, kNo}, {B, kOpen}, {I, kAfterB}, {I, kAfterB}},  // kBackward
    {{X, kOpen}, {X, kOpen}, {B, kNo}, {X, kOpen}, {F, kNo}, {F, kNo}},          // kBoth
};

}  // namespace

WindowTransition Transition(WindowState state, WindowEvent event) {
  return kTable[static_cast<size_t>(state)][static_cast<size_t>(event)];
}

}  // namespace tessera
