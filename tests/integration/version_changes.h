// What makes a version of a job's state, and so overwrites the one before the last.
#ifndef TESSERA_TESTS_INTEGRATION_VERSION_CHANGES_H_
#define TESSERA_TESTS_INTEGRATION_VERSION_CHANGES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tessera/session.h"
#include "tessera/stored_model.h"
#include "tests/testing/trainer_team.h"

namespace tessera {

struct VersionChange {
  std::string name;
  bool optimizer_in_backward;
  // Of a toy job. `next`: the next step's number as trainers count, if it is a step; `saved`: a
  // model that was saved of it.
  std::function<absl::Status(testing_support::TrainerTeam*, int64_t next, const std::string& saved)>
      make;
};

inline std::vector<VersionChange> VersionChanges() {
  using testing_support::TrainerTeam;
  const auto step = [](TrainerTeam* team, int64_t next, const std::string&) {
    return team->TrainTo(next);
  };
  const auto write = [](TrainerTeam* team, int64_t next, const std::string&) {
    return team->RunAll([&](Session* session) {
      return session->WriteParameters({0, 1, 2}, [&](int, int, absl::Span<float> values) {
        for (float& value : values) value = static_cast<float>(next);
      });
    });
  };
  const auto load = [](TrainerTeam* team, int64_t, const std::string& saved) {
    return team->RunAll([&](Session* session) { return LoadModel(session, saved).status(); });
  };
  return {{"Step", false, step},
          {"StepInBackward", true, step},
          {"Write", false, write},
          {"Load", false, load}};
}

}  // namespace tessera

#endif  // TESSERA_TESTS_INTEGRATION_VERSION_CHANGES_H_
