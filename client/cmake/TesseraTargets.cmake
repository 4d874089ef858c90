# The libraries, by their places relative to this file.
get_filename_component(_tessera_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET Tessera::c)
  add_library(Tessera::c SHARED IMPORTED)
  set_target_properties(Tessera::c PROPERTIES
    IMPORTED_LOCATION "${_tessera_prefix}/lib/libtessera.so.0"
    IMPORTED_SONAME libtessera.so.0
    INTERFACE_INCLUDE_DIRECTORIES "${_tessera_prefix}/include")
endif()

if(NOT TARGET Tessera::tessera AND TARGET absl::status)
  add_library(Tessera::tessera SHARED IMPORTED)
  set_target_properties(Tessera::tessera PROPERTIES
    IMPORTED_LOCATION "${_tessera_prefix}/lib/libtessera_cpp.so.@VERSION@"
    IMPORTED_SONAME libtessera_cpp.so.@VERSION@
    INTERFACE_COMPILE_FEATURES cxx_std_17
    INTERFACE_INCLUDE_DIRECTORIES "${_tessera_prefix}/include"
    INTERFACE_LINK_LIBRARIES
      "absl::core_headers;absl::function_ref;absl::span;absl::status;absl::statusor;absl::strings;absl::time")
endif()
