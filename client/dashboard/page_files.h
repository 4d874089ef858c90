// The files that a browser loads, embedded at build time: HTML, styles and scripts of page/.
// Thread-safe.
#ifndef TESSERA_CLIENT_DASHBOARD_PAGE_FILES_H_
#define TESSERA_CLIENT_DASHBOARD_PAGE_FILES_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace tessera::dashboard {

struct PageFile {
  absl::string_view path;  // "/" and "/app.js".
  absl::string_view content_type;
  absl::string_view content;
};

const std::vector<PageFile>& PageFiles();

}  // namespace tessera::dashboard

#endif  // TESSERA_CLIENT_DASHBOARD_PAGE_FILES_H_
