# For a repository of Spack 1.0 or later: packages/lockstep/package.py. `spack dev-build lockstep@main` builds the sources around it.
from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Lockstep(CMakePackage):
    """Training jobs on Slurm at the speed of the hardware: staging, binding, token-balanced batches, step times."""

    license("Apache-2.0")

    version("main")

    variant("library", default=True, description="Build the training library, which needs LibTorch and MPI")
    variant("plugin", default=True, description="Build the Slurm plugin")

    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python", type="build")
    depends_on("cli11")
    depends_on("fmt")
    depends_on("nlohmann-json")
    depends_on("xxhash")
    depends_on("libarchive")
    depends_on("hdf5~mpi")
    depends_on("openssl")
    depends_on("libmicrohttpd")
    depends_on("gnutls")
    depends_on("prometheus-cpp")
    depends_on("yaml-cpp")
    depends_on("libxcrypt")
    depends_on("munge")
    depends_on("libpng")
    depends_on("jpeg")
    depends_on("py-torch", when="+library")
    depends_on("mpi", when="+library")
    depends_on("slurm@22.05:", when="+plugin")
    depends_on("hwloc@2:", when="+plugin")

    generator("ninja")

    def cmake_args(self):
        args = [
            self.define_from_variant("LOCKSTEP_BUILD_PLUGIN", "plugin"),
            self.define_from_variant("LOCKSTEP_BUILD_RUNTIME", "library"),
            self.define_from_variant("LOCKSTEP_BUILD_COMM", "library"),
            self.define("LOCKSTEP_BUILD_STAGING", True),
            self.define("LOCKSTEP_BUILD_EXPORTERS", True),
        ]
        for part in "TESTS", "BENCHMARKS", "EXAMPLES":
            args.append(self.define(f"LOCKSTEP_BUILD_{part}", False))
        if self.spec.satisfies("+library"):
            import_path = self.spec["py-torch"].package.cmake_prefix_paths[0]  # .../torch/share/cmake
            args.append(self.define("LOCKSTEP_TORCH_WHEEL", join_path(import_path, "..", "..")))
        return args
