# Installs what find_package(lockstep) needs.
include(CMakePackageConfigHelpers)
get_property(LOCKSTEP_COMPONENTS GLOBAL PROPERTY LOCKSTEP_COMPONENTS)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/lockstep-config.cmake.in
                              ${CMAKE_BINARY_DIR}/lockstep-config.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lockstep-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT lockstep-targets NAMESPACE lockstep:: DESTINATION ${config_dir} COMPONENT development)
install(FILES ${CMAKE_BINARY_DIR}/lockstep-config.cmake ${CMAKE_BINARY_DIR}/lockstep-config-version.cmake
        ${CMAKE_CURRENT_LIST_DIR}/LockstepTorchWheel.cmake DESTINATION ${config_dir} COMPONENT development)
# The documents, and what they link to, at the same places as in the repository.
file(GLOB pages RELATIVE ${PROJECT_SOURCE_DIR} README.md LICENSE CHANGELOG.md CONTRIBUTING.md docs/*.md docs/*/*.md docs/images/*
     examples/*/README.md examples/*/*.sbatch examples/*/train.cpp examples/recipes/*.py)
foreach(page IN LISTS pages)
  get_filename_component(folder ${page} DIRECTORY)
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder} COMPONENT tools)
endforeach()
