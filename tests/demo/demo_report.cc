#include "tests/demo/demo_report.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/model_file.h"
#include "nlohmann/json.hpp"

namespace tessera::demo {
namespace {

std::string MiB(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

double DemoReport::LossMaxRelDiff() const {
  double worst = 0;
  for (size_t i = 0; i < std::min(losses.size(), unsharded_losses.size()); ++i) {
    worst =
        std::max(worst, std::abs(losses[i] - unsharded_losses[i]) / std::abs(unsharded_losses[i]));
  }
  return worst;
}

std::string DemoReport::Text() const {
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    absl::StrAppendFormat(&text, "  %-34s %s\n", name, value);
  };
  absl::StrAppend(&text, "\nTessera demo: ", parameters, " parameters in ", units,
                  " units, FULL_SHARD over ", world_size, " ranks, ", steps, " steps\n\n");
  line("loss, first and last step", absl::StrFormat("%.4f -> %.4f", losses.front(), losses.back()));
  if (!unsharded_losses.empty()) {
    line("largest difference to unsharded",
         absl::StrFormat("loss %.1e relative, parameters %.1e absolute", LossMaxRelDiff(),
                         params_max_abs_diff_vs_unsharded));
  }
  line("trainers killed", trainer_kills == 0
                              ? "0"
                              : absl::StrFormat("%d (SIGKILL); attached again after %.2f s",
                                                trainer_kills, reattach_seconds));
  line("steps redone after it",
       absl::StrCat(steps_redone, "; every rank committed each of ", steps, " steps once"));
  line("the whole model's parameters", MiB(unsharded_param_bytes));
  line("peak memory of a rank", absl::StrCat("parameters ", MiB(peak_parameter_bytes_per_rank),
                                             ", gradients ", MiB(peak_gradient_bytes_per_rank),
                                             ", optimizer ", MiB(peak_optimizer_bytes_per_rank)));
  line("step, median", absl::StrFormat("%.0f ms; forward and backward alone %.0f ms (ratio %.2f)",
                                       step_seconds_p50 * 1e3, compute_only_step_seconds_p50 * 1e3,
                                       compute_only_step_seconds_p50 > 0
                                           ? step_seconds_p50 / compute_only_step_seconds_p50
                                           : 0.0));
  line("throughput", absl::StrFormat("%.0f tokens/s", tokens_per_second));
  line("consolidated model",
       absl::StrFormat("%s, written by %d ranks in %.3f s, digest %s", checkpoint_path, world_size,
                       checkpoint_seconds, parameters_sha));
  return text;
}

std::string DemoReport::Json() const {
  nlohmann::ordered_json json;
  json["world_size"] = world_size;
  json["units"] = units;
  json["parameters"] = parameters;
  json["steps"] = steps;
  json["loss_first"] = losses.front();
  json["loss_last"] = losses.back();
  if (!unsharded_losses.empty()) {
    json["loss_max_rel_diff_vs_unsharded"] = LossMaxRelDiff();
    json["params_max_abs_diff_vs_unsharded"] = params_max_abs_diff_vs_unsharded;
  }
  json["trainer_kills"] = trainer_kills;
  json["reattach_seconds"] = reattach_seconds;
  json["steps_redone"] = steps_redone;
  json["unsharded_param_bytes"] = unsharded_param_bytes;
  json["peak_bytes_per_rank"] = {{"parameters", peak_parameter_bytes_per_rank},
                                 {"gradients", peak_gradient_bytes_per_rank},
                                 {"optimizer", peak_optimizer_bytes_per_rank}};
  json["step_seconds_p50"] = step_seconds_p50;
  json["compute_only_step_seconds_p50"] = compute_only_step_seconds_p50;
  json["tokens_per_second"] = tokens_per_second;
  json["checkpoint_path"] = checkpoint_path;
  json["checkpoint_seconds"] = checkpoint_seconds;
  json["checkpoint_digest"] = parameters_sha;
  return json.dump(2) + "\n";
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

absl::StatusOr<double> MaxAbsDifference(const std::string& path_a, const std::string& path_b) {
  ASSIGN_OR_RETURN(const std::vector<LoadedTensor> a, ReadModelFile(path_a));
  ASSIGN_OR_RETURN(const std::vector<LoadedTensor> b, ReadModelFile(path_b));
  if (a.size() != b.size())
    return absl::FailedPreconditionError(
        absl::StrCat(path_a, " and ", path_b, " hold different tensors"));
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].stored.name != b[i].stored.name || a[i].values.size() != b[i].values.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("tensor '", a[i].stored.name, "' differs in shape or is missing"));
    }
    for (size_t j = 0; j < a[i].values.size(); ++j) {
      worst = std::max(worst, std::abs(static_cast<double>(a[i].values[j]) - b[i].values[j]));
    }
  }
  return worst;
}

absl::StatusOr<std::string> FileDigest(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  uint64_t hash = 0xcbf29ce484222325;
  for (std::istreambuf_iterator<char> it(in), end; it != end; ++it)
    hash = (hash ^ static_cast<uint8_t>(*it)) * 0x100000001b3;
  return absl::StrFormat("%016x", hash);
}

}  // namespace tessera::demo
