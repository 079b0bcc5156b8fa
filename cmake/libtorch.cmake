# Defines the imported target sfsdp::libtorch from the folder of an unpacked LibTorch or of a Python torch package.
# Linked by hand: the TorchConfig.cmake of a CUDA wheel asks for a whole CUDA toolkit, which the CPU library never needs.
# Order: -DSFSDP_TORCH_DIR, what the project's own find_package(Torch) has found, $LIBTORCH, $Torch_DIR, the torch of
# python3, that of .venv in the project. If there is none, sfsdp_torch_missing says what to do; the includer decides
# whether that is an error, as find_package(sfsdp QUIET) must not stop a project that can do without.
function(sfsdp_find_torch_dir out)
  set(candidates "${SFSDP_TORCH_DIR}" "${TORCH_INSTALL_PREFIX}" "$ENV{LIBTORCH}")
  foreach(config_dir "${Torch_DIR}" "$ENV{Torch_DIR}")
    if(config_dir) # <torch>/share/cmake/Torch
      list(APPEND candidates "${config_dir}/../../.." "${config_dir}")
    endif()
  endforeach()
  foreach(dir IN LISTS candidates)
    if(dir AND EXISTS "${dir}/lib/libtorch_cpu.so")
      get_filename_component(dir "${dir}" REALPATH)
      set(${out} "${dir}" PARENT_SCOPE)
      return()
    elseif(dir AND dir STREQUAL "${SFSDP_TORCH_DIR}")
      set(sfsdp_torch_missing "SFSDP_TORCH_DIR = ${dir} holds no lib/libtorch_cpu.so; give the folder of LibTorch"
          PARENT_SCOPE)
      return()
    endif()
  endforeach()
  file(GLOB venv "${PROJECT_SOURCE_DIR}/.venv/bin/python3")
  foreach(python python3 ${venv})
    set(isolated "")
    if(NOT python STREQUAL python3)
      set(isolated -I) # .venv's own torch, whatever PYTHONPATH says
    endif()
    # find_spec does not import torch, which would cost seconds
    execute_process(
      COMMAND ${python} ${isolated} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE dir ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status)
    if(status EQUAL 0 AND EXISTS "${dir}/lib/libtorch_cpu.so")
      set(${out} "${dir}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(sfsdp_torch_missing
      "LibTorch not found; give -DSFSDP_TORCH_DIR=<folder that holds lib/libtorch_cpu.so>, or install torch for python3"
      PARENT_SCOPE)
endfunction()

# LibTorch loads libstdc++.so. A program that has a second one inside shares half of its symbols and none of its data with the
# first, and dies in std::call_once or in the first std::locale.
function(sfsdp_find_static_libstdcxx out)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU OR NOT UNIX OR APPLE)
    return()
  endif()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/sfsdp_libstdcxx.cc)
  set(program ${CMAKE_CURRENT_BINARY_DIR}/sfsdp_libstdcxx)
  file(WRITE ${source} "#include <iostream>\nint main() { std::cout << 1; }\n")
  try_compile(linked ${CMAKE_CURRENT_BINARY_DIR} SOURCES ${source} COPY_FILE ${program})
  if(linked)
    file(STRINGS ${program} shared REGEX "libstdc\\+\\+\\.so" LIMIT_COUNT 1)
    if(NOT shared)
      set(${out} TRUE PARENT_SCOPE)
    endif()
  endif()
endfunction()

set(sfsdp_torch_missing "")
if(NOT TARGET sfsdp::libtorch)
  sfsdp_find_static_libstdcxx(sfsdp_static_libstdcxx)
  if(sfsdp_static_libstdcxx)
    set(sfsdp_torch_missing
        "${CMAKE_CXX_COMPILER} links libstdc++ statically, and LibTorch needs the shared one; take -static-libstdc++ out of the linker flags, or give another compiler")
  else()
    sfsdp_find_torch_dir(sfsdp_torch_dir)
  endif()
  if(NOT sfsdp_torch_missing AND NOT EXISTS "${sfsdp_torch_dir}/include/torch/headeronly/version.h")
    set(sfsdp_torch_missing "LibTorch at ${sfsdp_torch_dir} is too old or has no headers; expected 2.11 to 2.15")
  endif()
endif()
if(NOT TARGET sfsdp::libtorch AND NOT sfsdp_torch_missing)
  set(SFSDP_TORCH_DIR "${sfsdp_torch_dir}" CACHE PATH "folder of LibTorch: include/, lib/" FORCE)
  file(READ "${SFSDP_TORCH_DIR}/include/torch/headeronly/version.h" sfsdp_version_text)
  string(REGEX MATCH "TORCH_VERSION_MAJOR ([0-9]+)" _ "${sfsdp_version_text}")
  set(sfsdp_version_major ${CMAKE_MATCH_1})
  string(REGEX MATCH "TORCH_VERSION_MINOR ([0-9]+)" _ "${sfsdp_version_text}")
  set(sfsdp_torch_version ${sfsdp_version_major}.${CMAKE_MATCH_1} CACHE INTERNAL "of sfsdp::libtorch")
  if(sfsdp_torch_version VERSION_LESS 2.11 OR sfsdp_torch_version VERSION_GREATER 2.15)
    message(WARNING "LibTorch ${sfsdp_torch_version} at ${SFSDP_TORCH_DIR} is untested; expected 2.11 to 2.15")
  endif()

  # GLOBAL: a project that has sfsdp as a subfolder links it from outside of that folder
  add_library(sfsdp::libtorch_c10 SHARED IMPORTED GLOBAL)
  set_target_properties(sfsdp::libtorch_c10 PROPERTIES IMPORTED_LOCATION "${SFSDP_TORCH_DIR}/lib/libc10.so")
  add_library(sfsdp::libtorch SHARED IMPORTED GLOBAL)
  set_target_properties(
    sfsdp::libtorch
    PROPERTIES IMPORTED_LOCATION "${SFSDP_TORCH_DIR}/lib/libtorch_cpu.so"
               # imported targets are SYSTEM: no warnings out of LibTorch's headers
               INTERFACE_INCLUDE_DIRECTORIES
               "${SFSDP_TORCH_DIR}/include;${SFSDP_TORCH_DIR}/include/torch/csrc/api/include"
               # without it LibTorch's own headers hide c10d
               INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED"
               # what libtorch_cpu.so itself links (OpenMP, CUDA) is found at run time, through its own rpath
               INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined"
               INTERFACE_LINK_LIBRARIES sfsdp::libtorch_c10)
  message(STATUS "LibTorch ${sfsdp_torch_version} at ${SFSDP_TORCH_DIR}")
endif()
