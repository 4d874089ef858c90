# find_package(Tessera)                    Tessera::tessera, the C++ library, and Tessera::c, the C
#                                          interface
# find_package(Tessera COMPONENTS c)       Tessera::c alone, which needs no Abseil
# find_package(Tessera COMPONENTS torch)   and Tessera::torch, the adapter of libtorch, which the
#                                          project compiles: see TesseraTorch.cmake
include(CMakeFindDependencyMacro)

if(NOT "${Tessera_FIND_COMPONENTS}" STREQUAL "c")
  # Its types are in our headers, so a program has to use the one that our library was built with.
  find_dependency(absl @ABSEIL_VERSION@ EXACT CONFIG)
endif()
include("${CMAKE_CURRENT_LIST_DIR}/TesseraTargets.cmake")
foreach(_tessera_component IN LISTS Tessera_FIND_COMPONENTS)
  if(_tessera_component STREQUAL "torch")
    include("${CMAKE_CURRENT_LIST_DIR}/TesseraTorch.cmake")
  elseif(NOT _tessera_component STREQUAL "c")
    set(Tessera_FOUND FALSE)
    set(Tessera_NOT_FOUND_MESSAGE "Tessera has no component ${_tessera_component}: only c and torch")
  endif()
endforeach()
