// Which param group of a job each parameter is in. For looking up many: building it takes as long
// as GroupOf (job_config.h) takes for one. Immutable; thread-safe.
#ifndef TESSERA_JOB_PARAM_GROUPS_H_
#define TESSERA_JOB_PARAM_GROUPS_H_

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "job/job_config.h"

namespace tessera {

class ParamGroups {
 public:
  // `config` outlives this.
  explicit ParamGroups(const JobConfig& config) {
    for (size_t group = 0; group < config.groups.size(); ++group) {
      for (const std::string& name : config.groups[group].parameter_names)
        group_of_.try_emplace(name, static_cast<int>(group));
    }
  }

  // Index into config.groups.
  int operator[](absl::string_view parameter_name) const {
    const auto found = group_of_.find(parameter_name);
    return found == group_of_.end() ? 0 : found->second;
  }

 private:
  absl::flat_hash_map<absl::string_view, int> group_of_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_PARAM_GROUPS_H_
