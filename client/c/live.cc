// Live state of a job, for a process outside of it.
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "client/c/handles.h"
#include "client/c/structs.h"
#include "client/c/tessera.h"
#include "nlohmann/json.hpp"
#include "tessera/live_reader.h"

namespace tessera::c_api {
namespace {

std::vector<std::string> TextsOf(const char* const* texts, size_t count) {
  std::vector<std::string> read;
  for (size_t i = 0; i < count; ++i) read.push_back(Text(texts[i]));
  return read;
}

absl::StatusOr<LiveQuery> ReadQuery(const tessera_live_options& given) {
  LiveQuery query;
  query.job_id = Text(given.job_id);
  if (given.num_include > 0) RETURN_IF_ERROR(CheckNotNull(given.include, "include"));
  if (given.num_exclude > 0) RETURN_IF_ERROR(CheckNotNull(given.exclude, "exclude"));
  query.include = TextsOf(given.include, given.num_include);
  query.exclude = TextsOf(given.exclude, given.num_exclude);
  query.moments = given.moments != 0;
  query.buffers = given.no_buffers == 0;
  if (given.dtype != nullptr && *given.dtype != '\0') {
    ASSIGN_OR_RETURN(query.dtype, ParseDType(given.dtype));
  }
  return query;
}

// Where entries go while they are read: a failed try writes the same again.
class Entries {
 public:
  absl::StatusOr<absl::Span<char>> RoomOf(const LiveEntry& entry) {
    NamedTensor& tensor = tensors_[entry.name];
    tensor.name = entry.name;
    tensor.dtype = entry.dtype;
    tensor.shape = entry.shape;
    tensor.values.resize(entry.size_bytes);
    for (const std::string& alias : entry.aliases) aliases_[alias] = entry.name;
    return absl::MakeSpan(tensor.values.data(), tensor.values.size());
  }
  void MoveTo(tessera_tensors* out) {
    for (auto& [name, tensor] : tensors_) out->tensors.push_back(std::move(tensor));
  }
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

 private:
  std::map<std::string, NamedTensor> tensors_;
  std::map<std::string, std::string> aliases_;
};

std::string DescriptionJson(const LiveVersion& version,
                            const std::map<std::string, std::string>& aliases) {
  const nlohmann::json description = {{"step", version.trained_step},
                                      {"committed_step", version.committed_step},
                                      {"generation", version.generation},
                                      {"aliases", aliases}};
  // Names may not be UTF-8. They are replaced, because dump would throw.
  return description.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace
}  // namespace tessera::c_api

using namespace tessera;         // NOLINT
using namespace tessera::c_api;  // NOLINT

int tessera_live_read(const tessera_live_options* options, tessera_tensors* out,
                      char** description_json) {
  const absl::Status status = [&]() -> absl::Status {
    tessera_live_options given;
    RETURN_IF_ERROR(ReadStruct(options, "options", &given));
    RETURN_IF_ERROR(CheckNotNull(out, "out"));
    ASSIGN_OR_RETURN(const LiveQuery query, ReadQuery(given));
    LiveReaderOptions where;
    where.coordinator_address = Text(given.coordinator_address);
    where.tls = {Text(given.tls_certificate_path), Text(given.tls_key_path),
                 Text(given.tls_ca_path)};
    where.insecure_connect = given.insecure_connect != 0;
    ASSIGN_OR_RETURN(const std::unique_ptr<LiveReader> reader, LiveReader::Open(where));
    Entries entries;
    ASSIGN_OR_RETURN(
        const LiveVersion version,
        reader->Read(query, [&entries](const LiveEntry& entry) { return entries.RoomOf(entry); }));
    entries.MoveTo(out);
    if (description_json != nullptr)
      *description_json = CopyOf(DescriptionJson(version, entries.aliases()));
    return absl::OkStatus();
  }();
  return CodeOf(status);
}
