# Debian packages by CPack: the target `packages` writes them to packages/ in the build folder. Each component package_X is
# one package; liblockstep-dev also takes the component development. The packages are for the prefix /usr; the files of
# the administrator are in /etc.
set(LOCKSTEP_PACKAGE_CONTACT "Lockstep maintainers <maintainers@${PROJECT_NAME}.invalid>" CACHE STRING
    "Maintainer that the packages name: NAME <ADDRESS>")
mark_as_advanced(LOCKSTEP_PACKAGE_CONTACT)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each package has its own
set(CPACK_PACKAGE_NAME ${PROJECT_NAME})
set(CPACK_PACKAGE_CONTACT "${LOCKSTEP_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
    WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL "")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)

set(ENV{SOURCE_DATE_EPOCH} ${LOCKSTEP_SOURCE_EPOCH})
string(TIMESTAMP LOCKSTEP_CHANGELOG_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(package_dir ${CMAKE_BINARY_DIR}/packages/control)
configure_file(packaging/debian/changelog.in ${package_dir}/changelog @ONLY)

# lockstep_package(plugin lockstep-plugin "One line" "Sentences" [DEPENDS ...] [RECOMMENDS ...] [CONTROL file ...] [COMPONENTS ...]):
# a Debian package of the component package_plugin and of the others named.
macro(lockstep_package group name summary description)
  cmake_parse_arguments(arg "" "DEPENDS;RECOMMENDS;SUGGESTS;SECTION" "CONTROL;COMPONENTS" ${ARGN})
  string(TOUPPER ${group} GROUP)
  foreach(component IN ITEMS ${arg_COMPONENTS} package_${group})  # installed in this order
    string(TOUPPER ${component} COMPONENT)
    list(APPEND CPACK_COMPONENTS_ALL ${component})
    set(CPACK_COMPONENT_${COMPONENT}_GROUP ${group})
  endforeach()
  set(CPACK_DEBIAN_${GROUP}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${GROUP}_DESCRIPTION "${summary}\n${description}")
  set(CPACK_DEBIAN_${GROUP}_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_${GROUP}_PACKAGE_DEPENDS "${arg_DEPENDS}")
  set(CPACK_DEBIAN_${GROUP}_PACKAGE_RECOMMENDS "${arg_RECOMMENDS}")
  set(CPACK_DEBIAN_${GROUP}_PACKAGE_SUGGESTS "${arg_SUGGESTS}")
  set(CPACK_DEBIAN_${GROUP}_PACKAGE_CONTROL_EXTRA "${arg_CONTROL}")
  set(CPACK_DEBIAN_${GROUP}_PACKAGE_CONTROL_STRICT_PERMISSION ON)
  if(arg_SECTION)
    set(CPACK_DEBIAN_${GROUP}_PACKAGE_SECTION ${arg_SECTION})
  endif()
  install(FILES packaging/debian/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name} COMPONENT package_${group} EXCLUDE_FROM_ALL)
  install(CODE "
    set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/doc/${name}\")
    file(COPY_FILE [[${package_dir}/changelog]] \"\${folder}/changelog.Debian\")
    execute_process(COMMAND gzip -9nf \"\${folder}/changelog.Debian\" COMMAND_ERROR_IS_FATAL ANY)"
    COMPONENT package_${group} EXCLUDE_FROM_ALL)
endmacro()

# lockstep_package_file(plugin plugin/spank/plugstack.conf.in /etc/slurm/plugstack.conf.d/lockstep.conf): a file of the
# sources in a package, with the prefix filled in. A relative path is below the prefix.
function(lockstep_package_file group template path)
  get_filename_component(name ${path} NAME)
  get_filename_component(folder ${path} DIRECTORY)
  if(NOT IS_ABSOLUTE ${folder})
    string(PREPEND folder "\${CMAKE_INSTALL_PREFIX}/")
  endif()
  set(made ${package_dir}/${group}/${folder})
  string(REPLACE "\${CMAKE_INSTALL_PREFIX}" "usr" made "${made}")
  install(CODE "
    configure_file([[${lockstep_SOURCE_DIR}/${template}]] [[${made}/${name}]] @ONLY)
    file(INSTALL [[${made}/${name}]] DESTINATION \"${folder}\")"
    COMPONENT package_${group} EXCLUDE_FROM_ALL)
endfunction()

# lockstep_package_scripts(plugin lockstep-plugin.conf lockstep-gc.timer [MOUNT]): a postinst that makes what this file of
# sysusers.d and tmpfiles.d describes, enables the mount unit and restarts the unit after an upgrade, and a prerm that stops
# the unit.
function(lockstep_package_scripts group file unit)
  set(LOCKSTEP_MOUNT ${ARGV3})
  set(LOCKSTEP_SYSTEM_FILE ${file})
  set(LOCKSTEP_UNIT ${unit})
  foreach(script IN ITEMS postinst prerm)
    configure_file(packaging/debian/${script}.in ${package_dir}/${group}/${script} @ONLY)
    file(CHMOD ${package_dir}/${group}/${script} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
         WORLD_READ WORLD_EXECUTE)
  endforeach()
endfunction()

set(sysusers "systemd | systemd-standalone-sysusers | systemd-sysusers")
if(LOCKSTEP_WITH_PLUGIN AND LOCKSTEP_WITH_STAGING)
  lockstep_package_scripts(plugin lockstep-plugin.conf lockstep-gc.timer run-lockstep.mount)
  file(WRITE ${package_dir}/plugin/conffiles "/etc/lockstep/lockstep.conf\n/etc/slurm/plugstack.conf.d/lockstep.conf\n")
  lockstep_package(plugin lockstep-plugin "Slurm plugin that stages data, binds tasks and records step times"
    "Adds --stage, --pin and --metrics to sbatch, salloc and srun. Install it\n on every machine where jobs are submitted or run, and add this line to\n plugstack.conf: include /etc/slurm/plugstack.conf.d/*.conf"
    DEPENDS "${sysusers}" RECOMMENDS munge SUGGESTS "slurmd | slurm-client, curl"  # many sites have a Slurm of their own
    CONTROL ${package_dir}/plugin/conffiles ${package_dir}/plugin/postinst ${package_dir}/plugin/prerm)
  lockstep_package_file(plugin plugin/spank/options/lockstep.conf.in /etc/lockstep/lockstep.conf)
  lockstep_package_file(plugin plugin/spank/options/lockstep.conf.in share/lockstep/lockstep.conf)
  lockstep_package_file(plugin plugin/spank/plugstack.conf.in /etc/slurm/plugstack.conf.d/lockstep.conf)
  lockstep_package_file(plugin plugin/spank/sysusers.conf lib/sysusers.d/lockstep-plugin.conf)
  lockstep_package_file(plugin plugin/spank/tmpfiles.conf lib/tmpfiles.d/lockstep-plugin.conf)
  lockstep_package_file(plugin plugin/spank/run-lockstep.mount lib/systemd/system/run-lockstep.mount)
  lockstep_package_file(plugin staging/cache/lockstep-gc.service.in lib/systemd/system/lockstep-gc.service)
  lockstep_package_file(plugin staging/cache/lockstep-gc.timer lib/systemd/system/lockstep-gc.timer)
endif()
if(LOCKSTEP_WITH_STAGING AND LOCKSTEP_WITH_EXPORTERS)
  lockstep_package(tools lockstep-tools "Packs training data, plans batches and reports on jobs"
    "lockstep-pack makes and reads packed data, lockstep-plan makes batches of equal\n work, lockstep-report and lockstep-top show where the time of a job goes,\n lockstep-run starts a job's program again after a failure."
    RECOMMENDS python3)  # for lockstep-run and lockstep.py
endif()
if(LOCKSTEP_WITH_EXPORTERS)
  lockstep_package_scripts(exporter lockstep.conf lockstep-exporter.service)
  lockstep_package(exporter lockstep-exporter "Step times of training jobs for Prometheus"
    "Serves the records of all ranks of all jobs on a node. Rules for\n Prometheus and dashboards for Grafana are in /usr/share/lockstep."
    DEPENDS "${sysusers}" CONTROL ${package_dir}/exporter/postinst ${package_dir}/exporter/prerm)
  lockstep_package_file(exporter exporters/node/lockstep-exporter.service.in lib/systemd/system/lockstep-exporter.service)
  lockstep_package_file(exporter exporters/node/sysusers.conf lib/sysusers.d/lockstep.conf)
  lockstep_package_file(exporter exporters/node/tmpfiles.conf lib/tmpfiles.d/lockstep.conf)
  lockstep_package_file(exporter exporters/dashboards/provisioning.yaml.in share/lockstep/provisioning.yaml)
endif()
if(LOCKSTEP_WITH_RUNTIME AND LOCKSTEP_WITH_STAGING AND NOT LOCKSTEP_TORCH_WHEEL)
  include(LockstepLibraryPackages)
endif()

include(CPack)

get_property(package_libraries GLOBAL PROPERTY LOCKSTEP_EXPORTED)
add_custom_target(packages
  COMMAND ${CMAKE_COMMAND} -E env SOURCE_DATE_EPOCH=${LOCKSTEP_SOURCE_EPOCH}
          # The folders of the packages must be open to all, whatever the umask of the user who builds them.
          sh -c "umask 022; exec \"$0\" \"$@\"" ${CMAKE_CPACK_COMMAND} --config ${CMAKE_BINARY_DIR}/CPackConfig.cmake
  DEPENDS tools manuals ${package_libraries} WORKING_DIRECTORY ${CMAKE_BINARY_DIR} USES_TERMINAL VERBATIM)

# The sources of the last commit, the same to the byte each time.
set(archive ${CMAKE_BINARY_DIR}/packages/${PROJECT_NAME}-${PROJECT_VERSION}.tar.gz)
add_custom_target(source-archive
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/packages
  COMMAND git archive --format=tar --prefix=${PROJECT_NAME}-${PROJECT_VERSION}/ --output=${archive}.tar HEAD
  COMMAND gzip -9n < ${archive}.tar > ${archive}
  COMMAND ${CMAKE_COMMAND} -E rm ${archive}.tar
  WORKING_DIRECTORY ${lockstep_SOURCE_DIR} VERBATIM)
