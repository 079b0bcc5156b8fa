# Sorts every .cc of the tree into the lists CMakeLists.txt builds from:
#   SFSDP_CORE_SOURCES  SFSDP_TORCH_SOURCES  SFSDP_TESTING_SOURCES  SFSDP_CORE_TESTS  SFSDP_TORCH_TESTS
# Folders are globbed, so that a new file needs no edit; an empty or missing folder is no error.
include(cmake/torch_sources.cmake)

file(GLOB_RECURSE sfsdp_all RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS sfsdp/*.cc)
file(GLOB_RECURSE SFSDP_CORE_TESTS RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS tests/core/*.cc)
file(GLOB_RECURSE SFSDP_TORCH_TESTS RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS tests/torch/*.cc)
file(GLOB sfsdp_torch_named RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${SFSDP_TORCH_FILES})
list(JOIN SFSDP_TORCH_FOLDERS "|" sfsdp_torch_folders_regex)

set(SFSDP_CORE_SOURCES)
set(SFSDP_TORCH_SOURCES)
set(SFSDP_TESTING_SOURCES)
foreach(file IN LISTS sfsdp_all)
  string(REGEX REPLACE "_test\\.cc$" ".cc" subject ${file})
  set(is_torch OFF)
  if(file MATCHES "^(${sfsdp_torch_folders_regex})/" OR file IN_LIST sfsdp_torch_named OR subject IN_LIST
                                                                                      sfsdp_torch_named)
    set(is_torch ON)
  endif()

  if(file MATCHES "^sfsdp/tools/main(_[a-z]+)?\\.cc$" OR file MATCHES "/doctest_main\\.cc$" OR file MATCHES "^sfsdp/comm/mpi/plugin/")
    continue()
  elseif(file MATCHES "^sfsdp/(tools|train)/no_[a-z_]*\\.cc$")
    # The twin of a torch file: says, in a build without LibTorch, what is missing.
    if(NOT SFSDP_WITH_TORCH)
      list(APPEND SFSDP_CORE_SOURCES ${file})
    endif()
  elseif(file MATCHES "_test\\.cc$" OR (is_torch AND file MATCHES "^sfsdp/testing/"))
    if(is_torch)
      list(APPEND SFSDP_TORCH_TESTS ${file})
    else()
      list(APPEND SFSDP_CORE_TESTS ${file})
    endif()
  elseif(is_torch)
    list(APPEND SFSDP_TORCH_SOURCES ${file})
  elseif(file MATCHES "^sfsdp/testing/")
    list(APPEND SFSDP_TESTING_SOURCES ${file})
  else()
    list(APPEND SFSDP_CORE_SOURCES ${file})
  endif()
endforeach()

list(JOIN SFSDP_TORCH_FREE_FOLDERS "|" sfsdp_free_folders_regex)
set(sfsdp_misplaced ${SFSDP_TORCH_SOURCES} ${SFSDP_TORCH_TESTS})
list(FILTER sfsdp_misplaced INCLUDE REGEX "^(${sfsdp_free_folders_regex})/")
if(sfsdp_misplaced)
  message(FATAL_ERROR "${sfsdp_misplaced}: listed as including LibTorch, but in a torch-free folder; expected it in capture/, "
                      "exec/ or step/ (SFSDP_TORCH_FREE_FOLDERS in cmake/torch_sources.cmake)")
endif()
