// Loads a model of anybody's into jobs of 1 to 8 ranks, each through a real coordinator, worker and
// executors (threads), and saves it from each. tools/real-model runs it.
//
//   real_model MODEL OUT    writes OUT/world1.safetensors ... OUT/world8.safetensors
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "checkpoint/open_model.h"
#include "client/cpp/load_model.h"
#include "client/cpp/local_cluster.h"
#include "client/cpp/session.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

constexpr int kMaxWorldSize = 8;

// A unit for each module, which is what stands before the last dot of a tensor's name; those of the
// root come first.
absl::StatusOr<ModelSpec> SpecOf(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelSource> model, OpenModel(path));
  std::map<std::string, UnitSpec> units;
  for (const auto& [name, info] : model->tensors()) {
    const size_t dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? "root" : name.substr(0, dot);
    units[module].name = module;
    units[module].parameters.push_back({name, info.shape, DType::kFp32});
  }
  ModelSpec spec;
  for (auto& [module, unit] : units) spec.units.push_back(std::move(unit));
  return spec;
}

absl::Status LoadAndSave(const std::string& path, const std::string& out, const ModelSpec& spec,
                         int world_size, LocalCluster* cluster) {
  SessionOptions options =
      testing_support::ToyOptions(*cluster, absl::StrCat("world", world_size), world_size);
  options.model = spec;
  ASSIGN_OR_RETURN(testing_support::TrainerTeam team, testing_support::TrainerTeam::Open(options));
  return team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(LoadModel(session, path).status());
    return session->Save(absl::StrCat(out, "/world", world_size, ".safetensors"));
  });
}

absl::Status Run(const std::string& path, const std::string& out) {
  ASSIGN_OR_RETURN(const ModelSpec spec, SpecOf(path));
  LocalCluster::Options options;
  options.num_devices = kMaxWorldSize * (kMaxWorldSize + 1) / 2;
  ASSIGN_OR_RETURN(const std::unique_ptr<LocalCluster> cluster, LocalCluster::Start(options));
  for (int world_size = 1; world_size <= kMaxWorldSize; ++world_size)
    RETURN_IF_ERROR(LoadAndSave(path, out, spec, world_size, cluster.get()));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: real_model MODEL OUT\n");
    return 2;
  }
  const absl::Status status = tessera::Run(argv[1], argv[2]);
  if (!status.ok()) fprintf(stderr, "real_model: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
