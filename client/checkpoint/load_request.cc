#include "client/checkpoint/load_request.h"

namespace tessera {

void EncodeNames(const NameSelection& names, v1::LoadRequest* request) {
  for (const NameSelection::Rename& rename : names.renames) {
    v1::NameRename* to = request->add_renames();
    to->set_from(rename.from);
    to->set_to(rename.to);
  }
  *request->mutable_include() = {names.include.begin(), names.include.end()};
  *request->mutable_exclude() = {names.exclude.begin(), names.exclude.end()};
}

}  // namespace tessera
